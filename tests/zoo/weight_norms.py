"""Networks with weight_norm, and the same written by hand."""

import warnings

import torch
import torch.nn.functional as F
from torch import nn


class ByHand(nn.Module):
    """x Wᵀ + b with W = g v/‖v‖, with the lengths taken over `dims`."""

    def __init__(self, g, v, bias, dims):
        super().__init__()
        self.bias, self.g, self.v = bias, g, v
        self.dims = dims

    def forward(self, x):
        lengths = torch.sqrt((self.v * self.v).sum(self.dims, keepdim=True))
        return F.linear(x, self.v / lengths * self.g, self.bias)


def old(layer, dim):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls it deprecated
        return nn.utils.weight_norm(layer, dim=dim)


NORMS = {"parametrization": nn.utils.parametrizations.weight_norm, "old": old}


def network(kind, dim, seed=0):
    """A network with weight_norm in double precision, and the same by hand."""
    torch.manual_seed(seed)
    layer = NORMS[kind](nn.Linear(3, 2), dim=dim)
    model = nn.Sequential(layer, nn.Tanh(), nn.Linear(2, 2)).double()
    with torch.no_grad():  # or g is the length of v
        for p in model.parameters():
            p.mul_(1.5)
    g, v = (p for name, p in layer.named_parameters() if name != "bias")
    dims = {0: 1, 1: 0, None: (0, 1)}[dim]
    by_hand = nn.Sequential(ByHand(g, v, layer.bias, dims), nn.Tanh(), model[2])
    return model, by_hand
