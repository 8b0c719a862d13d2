"""How a layer's per-sample gradient G contracts to trace, κ and ρ, without forming G if possible.

A layer with shared weights has G_n = Σ_t δ_t u_tᵀ over T positions, with δ the back-propagated
signal and u the input patch. Layout here, fixed once: δ is (N, g, out, T), u is (N, g, T, in) and
W is (g, out, in), where g counts the groups of a grouped convolution (1 for all other layers). The
columns of a convolution run over kernel taps first and channels last: with that order both the
unfolding and the product δ u run at full speed.

Three forms give the same numbers at very different costs:

    vector   T = 1: G is an outer product and never needed
    direct   form G = δ u:                      out·in·T,      κ = ⟨W Wᵀ G, G⟩ or ‖Wᵀ G‖²
    gram     ⟨δᵀδ, u uᵀ⟩ over positions:        T²·(out + in), κ = ⟨δᵀ(W Wᵀ δ), u uᵀ⟩

u uᵀ does not depend on the factor column, so it is computed once for all of them. In the direct
form the signals of several columns are collected first: u is unfolded and read once for them all.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import torch
from torch import Tensor

Form = Literal["vector", "direct", "gram"]

# Writing a number and reading it back costs about as much as this many multiplications in a matrix
# product: measured as 28 on a CPU core, and about 80 according to an H200's data sheet.
ELEMENT = 32


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of one layer in the layout above."""

    groups: int
    rows: int
    columns: int
    positions: int


def choose_form(shape: Shape, *, num_columns: int, kappa: bool) -> Form:
    """The cheapest form, by the number of multiplications per factor column.

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
    unfolded = fan_in * T * ELEMENT / direct_columns(shape, num_columns)
    direct = out * fan_in * (T + ELEMENT + kappa * (min(out, fan_in) + ELEMENT)) + unfolded
    once = T * T * (fan_in + ELEMENT) / max(num_columns, 1)
    gram = once + T * T * (out + ELEMENT) + kappa * (out * out * T + T * T * (out + ELEMENT))
    return "direct" if direct <= gram else "gram"


def direct_columns(shape: Shape, num_columns: int) -> int:
    """How many factor columns the direct form contracts together: about 256 rows of δ in all.

    >>> direct_columns(Shape(1, 16, 144, 1024), 9), direct_columns(Shape(1, 128, 576, 256), 9)
    (9, 3)
    """
    rounds = max(1, round(num_columns * shape.rows / 256))
    return math.ceil(num_columns / rounds)


def cached_floats(shape: Shape, form: Form, num_columns: int, memories: int = 1) -> int:
    """Numbers stored per sample between factor columns; `memories` counts the stored patches."""
    per_group = {
        "vector": memories,
        "direct": direct_columns(shape, num_columns) * shape.rows * shape.positions,
        "gram": memories * shape.positions**2,
    }
    return shape.groups * per_group[form]


def working_floats(shape: Shape, form: Form, num_columns: int, memories: int = 1) -> int:
    """Temporary numbers of one contraction, per sample."""
    patches = shape.columns * shape.positions
    gradients = direct_columns(shape, num_columns) * shape.rows * shape.columns
    scaled = memories > 1  # a second copy of the patches or of G, divided by the features' scale
    per_group = {
        "vector": (1 + scaled) * patches + shape.rows,
        "direct": patches + (4 + scaled) * gradients,
        "gram": max((1 + scaled) * patches, 2 * shape.positions**2 + shape.rows * shape.positions),
    }
    return shape.groups * per_group[form]


def remember(patches: Tensor, form: Form) -> Tensor:
    """What the vector and the gram form need of the patches u, computed once per batch."""
    if form == "gram":
        return patches @ patches.mT  # (N, g, T, T)
    return patches.square().sum(dim=(2, 3))  # (N, g)


def trace(signal: Tensor, memory: Tensor, form: Form) -> Tensor:
    """‖G_n‖² without G, for one column, shape (N,)."""
    if form == "vector":
        return (signal.square().sum(dim=(2, 3)) * memory).sum(dim=1)
    return _inner(signal.mT @ signal, memory, 1)


def kappa(signal: Tensor, memory: Tensor, form: Form, gram: Tensor) -> Tensor:
    """‖Wᵀ G_n‖² without G, for one column, shape (N,); `gram` is W Wᵀ of shape (g, out, out)."""
    turned = gram @ signal
    if form == "vector":
        return ((signal * turned).sum(dim=(2, 3)) * memory).sum(dim=1)
    return _inner(signal.mT @ turned, memory, 1)


def gradient(signal: Tensor, patches: Tensor) -> Tensor:
    """G = δ u, shape (N, g, out, in)."""
    return signal @ patches


def gradient_trace(G: Tensor) -> Tensor:
    """‖G_nb‖², shape (N, B), for G of shape (N, B, …)."""
    return torch.linalg.vector_norm(G.reshape(*G.shape[:2], -1), dim=2).square()


def gradient_kappa(G: Tensor, weight: Tensor, gram: Tensor) -> Tensor:
    """‖Wᵀ G_nb‖², shape (N, B), for G of shape (N, B, g, out, in), by the smaller product."""
    if weight.shape[-1] < weight.shape[-2]:
        return gradient_trace(weight.mT @ G)
    return _inner(gram @ G, G, 2)


def gradient_neurons(G: Tensor, weight: Tensor, neurons: int) -> Tensor:
    """Σ over a neuron's weights of w·G, shape (N, B, g·neurons); squared it is ρ(j)."""
    products = (G * weight).unflatten(-1, (-1, neurons))  # (N, B, g, out, taps, neurons)
    return products.sum(dim=(3, 4)).flatten(2)


def _inner(x: Tensor, y: Tensor, batch_dims: int) -> Tensor:
    return torch.linalg.vecdot(x.flatten(batch_dims), y.flatten(batch_dims))
