"""Closed forms of relative.* on one linear layer."""

import torch


def forms(model, x, y, loss, options):
    """κ of the layer with W V on inputs x/V: mean Tr(A W V² W') ‖x/V‖²; A from the textbook."""
    W, num_outputs = model.weight.detach(), len(model.weight)
    if loss == "mse":
        A = torch.eye(num_outputs, dtype=W.dtype).expand(len(x), -1, -1) * 2 / num_outputs
    else:
        p = model(x).detach().softmax(dim=1)
        A = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]

    def kappa(v):
        curved = torch.einsum("ij,nik,kj->n", W * v, A, W * v)
        return (curved * (x / v).square().sum(dim=1)).mean()

    ones = torch.ones(W.shape[1], dtype=W.dtype)
    return {
        "relative.kappa_decay": kappa(ones)
        + (options.weight_decay or 0) * W.numel() / num_outputs * W.square().sum(),
        "relative.kappa_std": kappa(x.std(dim=0)),  # a common factor in V cancels
        "relative.kappa_var": kappa(x.var(dim=0)),
    }
