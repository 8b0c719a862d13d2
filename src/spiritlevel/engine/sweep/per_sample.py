"""Per-sample gradients of any parameter, whatever the model does with it.

For parameters without a layer rule: class tokens, position embeddings, scales, attention and
recurrent weights, parametrized weights. Samples run side by side under vmap; if a model does not
support vmap they run one by one, which gives the same numbers.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from ...ground.errors import is_out_of_memory
from ...model import batches as _batches
from ...model.surface import Surface
from ...records.measurements import Cost

# Data-dependent control flow, in-place writes, operators without a vmap rule.
_NOT_VECTORIZED = (RuntimeError, ValueError, TypeError, NotImplementedError)


def per_sample_gradients(
    surface: Surface, names: list[str], batch: Any, columns: Tensor, *, vectorize: bool
) -> dict[str, Tensor]:
    """∂⟨s_k, z_n⟩/∂θ by name, shape (N, K, *parameter), for `columns` of shape (N, K, *outputs)."""
    num_samples, num_columns = columns.shape[:2]
    surface.cost += Cost(forwards=num_samples, backwards=num_samples * num_columns)
    parameters = {name: surface.parameters[name].detach() for name in names}
    if vectorize:
        try:
            return _vectorized(surface, parameters, batch, columns)
        except _NOT_VECTORIZED as error:  # another batch, in another shape or memory format
            if is_out_of_memory(error):
                raise
    return _one_by_one(surface, parameters, batch, columns)


def can_vectorize(surface: Surface, names: list[str], batch: Any, columns: Tensor) -> bool:
    """Whether the model runs under vmap on this batch and agrees with single samples there."""
    parameters = {name: surface.parameters[name].detach() for name in names}
    try:
        fast = _vectorized(surface, parameters, batch, columns)
    except _NOT_VECTORIZED as error:
        if is_out_of_memory(error):
            raise
        return False
    slow = _one_by_one(surface, parameters, batch, columns)
    return all(torch.allclose(fast[n], slow[n], rtol=1e-3, atol=1e-6) for n in names)


def _vectorized(
    surface: Surface, parameters: dict[str, Tensor], batch: Any, columns: Tensor
) -> dict[str, Tensor]:
    leaves = _batches.tensors(batch)
    per_sample = [t.dim() > 0 and len(t) == len(columns) for t in leaves]

    def one(sample: list[Tensor], cotangents: Tensor) -> dict[str, Tensor]:
        single = [
            t.unsqueeze(0) if has_samples else t
            for t, has_samples in zip(sample, per_sample, strict=True)
        ]
        function = surface.function(_batches.rebuild(batch, single))
        pull = torch.func.vjp(function, parameters)[1]
        (gradients,) = torch.func.vmap(lambda s: pull(s.unsqueeze(0)))(cotangents)
        return gradients

    in_dims = [0 if has_samples else None for has_samples in per_sample]
    with warnings.catch_warnings():
        # a message to torch's developers about operators that are vectorized by a loop
        warnings.filterwarnings("ignore", message="There is a performance drop")
        return torch.func.vmap(one, in_dims=(in_dims, 0))(leaves, columns)


def _one_by_one(
    surface: Surface, parameters: dict[str, Tensor], batch: Any, columns: Tensor
) -> dict[str, Tensor]:
    rows: dict[str, list[Tensor]] = {name: [] for name in parameters}
    for n, cotangents in enumerate(columns):
        leaves = {name: value.clone().requires_grad_() for name, value in parameters.items()}
        # the backward too: there a model may run a part of itself again, as an adjoint method does
        with surface.substituting(leaves):
            with torch.enable_grad():
                outputs = surface.function(_batches.take(batch, slice(n, n + 1)))({})
            per_column = [
                torch.autograd.grad(
                    outputs,
                    list(leaves.values()),
                    s.unsqueeze(0),
                    retain_graph=True,
                    allow_unused=True,
                )
                for s in cotangents
            ]
        for i, (name, leaf) in enumerate(leaves.items()):
            values = [torch.zeros_like(leaf) if g[i] is None else g[i] for g in per_column]
            rows[name].append(torch.stack(values))
    return {name: torch.stack(values) for name, values in rows.items()}
