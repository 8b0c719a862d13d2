"""Standardized κ by its definition: what goes into each layer, and dense matrices."""

import torch
import torch.nn.functional as F
from torch import nn

from spiritlevel.testing import references

NAMES = {"relative.kappa_std": 1, "relative.kappa_var": 2}  # and the power of the deviation


def inputs_of(model, batches, call=None):
    """Rows (positions, features) of what goes into each layer that is a matrix, by layer."""
    found, handles = {}, []
    for name, module in model.named_modules():
        if references.matrix_view(module) is None:
            continue

        def note(m, args, kwargs, name=name):
            a = (*args, *kwargs.values())[0]
            if isinstance(m, nn.Embedding):
                a = F.one_hot(a, m.num_embeddings).double()
            elif not isinstance(m, nn.Linear):
                a = a.movedim(1, -1)
            found.setdefault(name or references.ROOT, []).append(a.reshape(-1, a.shape[-1]))

        handles.append(module.register_forward_pre_hook(note, with_kwargs=True))
    x, _ = references.concatenated(batches)
    with torch.no_grad():
        (call or (lambda m, x: m(x)))(model, x)
    for handle in handles:
        handle.remove()
    return {name: torch.cat(parts) for name, parts in found.items()}


def scale_of(rows, power):
    """Standard deviation or variance; |mean| or its square for what is constant."""
    v = rows.std(dim=0, unbiased=False)
    v = torch.where(v <= 1e-12 * rows.mean(dim=0).abs(), rows.mean(dim=0).abs(), v)
    return v**power


def standardized_kappa(H, weight, view, v):
    """κ with w' = w·v and H' = H/vv' entry by entry; entries of dead features take no part."""
    d = torch.zeros(weight.numel(), dtype=torch.float64)
    for j, entries in enumerate(view.neurons):
        d[entries] = v[j]
    inverse = torch.where(d > 0, 1 / d, torch.zeros_like(d))
    scaled = H * inverse[:, None] * inverse[None, :]
    return references.kappa(scaled, weight.detach().flatten() * d, view)
