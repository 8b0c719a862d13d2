"""How a layer's per-sample gradient G contracts to trace, κ and ρ without being formed needlessly.

A layer with shared weights has G_n = Σ_t δ_t u_tᵀ over T positions, with δ the back-propagated
signal and u the input patch. Layout here, fixed once: δ is (N, g, out, T), u is (N, g, in, T) and
W is (g, out, in), where g counts the independent groups of a grouped convolution (1 elsewhere).

Three forms give the same numbers at very different prices:

    vector   T = 1: G is an outer product and never needed
    direct   form G = δ uᵀ:                     out·in·T,      κ = ⟨W Wᵀ G, G⟩ or ‖Wᵀ G‖²
    gram     ⟨δᵀδ, uᵀu⟩ over positions:         T²·(out + in), κ = ⟨δᵀ(W Wᵀ δ), uᵀu⟩

uᵀu does not depend on the factor column, so it is computed once for all of them.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor

Form = Literal["vector", "direct", "gram"]


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of one layer in the layout above."""

    groups: int
    rows: int
    columns: int
    positions: int


def choose_form(shape: Shape, *, num_columns: int, kappa: bool) -> Form:
    """The cheapest form, by multiplications a factor column.

    >>> choose_form(Shape(1, 64, 27, 1024), num_columns=9, kappa=True)     # a first conv layer
    'direct'
    >>> choose_form(Shape(1, 512, 2304, 16), num_columns=9, kappa=True)    # a late one
    'gram'
    >>> choose_form(Shape(1, 512, 3072, 1), num_columns=9, kappa=True)     # a linear layer
    'vector'
    """
    out, fan_in, T = shape.rows, shape.columns, shape.positions
    if T == 1:
        return "vector"
    direct = out * fan_in * T + (kappa * out * fan_in * min(out, fan_in))
    gram = T * T * (out + fan_in / max(num_columns, 1)) + kappa * (out * out * T + T * T * out)
    return "direct" if direct <= gram else "gram"


def cached_floats(shape: Shape, form: Form) -> int:
    """Numbers kept for one sample between factor columns."""
    per_group = {
        "vector": shape.columns,
        "direct": shape.columns * shape.positions,
        "gram": shape.positions**2,
    }
    return shape.groups * per_group[form]


def working_floats(shape: Shape, form: Form) -> int:
    """Numbers that one contraction makes and drops again, for one sample."""
    per_group = {
        "vector": shape.rows,
        "direct": 2 * shape.rows * shape.columns,
        "gram": 2 * shape.positions**2 + shape.rows * shape.positions,
    }
    return shape.groups * per_group[form]


def remember(patches: Tensor, form: Form) -> Tensor:
    """What a form needs of the patches u, computed once a batch."""
    if form == "gram":
        return patches.mT @ patches  # (N, g, T, T)
    if form == "vector":
        return patches.square().sum(dim=(2, 3))  # (N, g)
    return patches


def squared_norm(x: Tensor) -> Tensor:
    """‖x_n‖² of each sample, shape (N,)."""
    return torch.linalg.vector_norm(x.flatten(1), dim=1).square()


def inner(x: Tensor, y: Tensor) -> Tensor:
    """⟨x_n, y_n⟩ of each sample, shape (N,); a batched product needs no temporary of x∘y."""
    return (x.flatten(1)[:, None, :] @ y.flatten(1)[:, :, None]).flatten()


def gradient(signal: Tensor, patches: Tensor) -> Tensor:
    """G = δ uᵀ, shape (N, g, out, in)."""
    return signal @ patches.mT


def trace(signal: Tensor, memory: Tensor, form: Form) -> Tensor:
    """‖G_n‖² for the forms that do not need G."""
    if form == "vector":
        return (signal.square().sum(dim=(2, 3)) * memory).sum(dim=1)
    return inner(signal.mT @ signal, memory)


def kappa(signal: Tensor, memory: Tensor, form: Form, gram: Tensor) -> Tensor:
    """‖Wᵀ G_n‖² for the forms that do not need G; `gram` is W Wᵀ of shape (g, out, out)."""
    turned = gram @ signal
    if form == "vector":
        return ((signal * turned).sum(dim=(2, 3)) * memory).sum(dim=1)
    return inner(signal.mT @ turned, memory)


def gradient_kappa(G: Tensor, weight: Tensor, gram: Tensor) -> Tensor:
    """‖Wᵀ G_n‖² from G itself, through the smaller of the two products."""
    if weight.shape[-1] < weight.shape[-2]:
        return squared_norm(weight.mT @ G)
    return inner(gram @ G, G)


def gradient_neurons(G: Tensor, weight: Tensor, neurons: int) -> Tensor:
    """Σ over a neuron's weights of w·G, shape (N, g·neurons); squared it is ρ(j)."""
    num_samples, groups, rows, columns = G.shape
    taps = columns // neurons
    products = (G * weight).view(num_samples, groups, rows, neurons, taps)
    return products.sum(dim=(2, 4)).flatten(1)
