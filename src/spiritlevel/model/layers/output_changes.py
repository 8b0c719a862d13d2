"""What changes of a layer's parameters do to its output: random ones, or one that is given."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..layer_hooks import LayerUse
from .broadcast import BroadcastRule, laid_along
from .embedding import EmbeddingRule
from .layer_rule import AbstractMatrixRule, ContractionRequest
from .layout import Layout
from .patches import ConvRule, LinearRule
from .scale import ScaleRule
from .unfold import padded_input

_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


@dataclasses.dataclass(frozen=True)
class RankOneNoise:
    """A change ξ of a parameter for every sample: first ⊗ second, or first alone for a vector."""

    first: Tensor  # along the first dimension of the parameter, shape: (N, size)
    second: Tensor | None  # along all others, shape: (N, size)


@dataclasses.dataclass(frozen=True)
class SignedNoise:
    """A change ξ = diag(first) V diag(second) of a matrix for every sample; for κ, W ξ or ξ Lᵀ.

    V holds signs that all samples share, and is made anew where it is needed. For a linear map the
    values ⟨ξ, H ξ⟩ of two samples have no correlation all the same: their mean over the signs of
    each sample is Tr H whatever the signs in V are.
    """

    first: Tensor  # along the first dimension of V, shape: (N, rows)
    second: Tensor  # along the second, shape: (N, columns)
    shared: Callable[[], Tensor]  # makes V: in the shape of the parameter, or (in, in) with W
    weight: Tensor | None = None  # W: the parameter, for κ
    factor: Tensor | None = None  # L along the second dimension, L Lᵀ = W Wᵀ: for κ of a table


@dataclasses.dataclass(frozen=True)
class ColumnNoise:
    """A change of a matrix for every sample: each of its columns times a sign."""

    signs: Tensor  # one for each input neuron, shape: (N, neurons)
    weight: Tensor  # the parameter
    on_rows: bool  # whether the first dimension of the parameter holds the neurons


Noise = RankOneNoise | SignedNoise | ColumnNoise


def direction_at_output(use: LayerUse, layout: Layout, key: str, noise: Noise) -> Tensor:
    """The change of a use's output if each sample had its own parameter, changed by ξ.

    `key` is the short name of the parameter. The output is linear in it. If the use has its input
    with a graph, the change has one too.
    """
    a = use.input if use.live_input is None else use.live_input
    if isinstance(noise, ColumnNoise):
        return scaled_columns(use, a, layout, noise)
    if isinstance(noise, SignedNoise):
        return _signed(use, a, layout, noise)
    return _direction(use, a, layout, key, noise).to(use.output.dtype)


def scaled_columns(use: LayerUse, a: Tensor, layout: Layout, noise: ColumnNoise) -> Tensor:
    """What the use does with the matrix, to an input or an output times the signs.

    The same parameter may be a table here and a matrix of outputs there (tied): its neurons are
    then inputs of the one and outputs of the other.
    """
    rule = use.rule
    assert isinstance(rule, AbstractMatrixRule)
    if noise.on_rows == rule.rows_first:
        return _between_signs(use, a, layout, noise.weight, into=None, out=noise.signs)
    return _between_signs(use, a, layout, noise.weight, into=noise.signs, out=None)


def _signed(use: LayerUse, a: Tensor, layout: Layout, noise: SignedNoise) -> Tensor:
    rule, V = use.rule, noise.shared()
    assert isinstance(rule, AbstractMatrixRule)
    if noise.weight is None:
        out, into = (noise.first, noise.second)[:: 1 if rule.rows_first else -1]
        factor = noise.factor
        if factor is not None and rule.rows_first:  # a table that is a matrix of outputs here
            a = a @ factor
        change = _between_signs(use, a, layout, V, into=into, out=out)
        return change if factor is None or rule.rows_first else change @ factor.mT
    shape, channel = use.output.shape, a.dim() - 1
    second, first = (layout.repeated(signs, shape) for signs in (noise.second, noise.first))
    inner = (a * _along(second, a, layout.dim, channel)) @ V.mT
    inner = inner * _along(first, inner, layout.dim, channel)
    weight = rule.matrix(use.module, _as_seen(use, noise.weight))[0]
    return (inner @ weight.mT).to(use.output.dtype)


def _as_seen(use: LayerUse, weight: Tensor) -> Tensor:
    """A matrix in the shape of the parameter, in the shape that the operation sees."""
    operand = use.operands.get("weight")
    return weight if operand is None else weight.reshape(operand.view.shape)


def _between_signs(
    use: LayerUse,
    a: Tensor,
    layout: Layout,
    weight: Tensor,
    *,
    into: Tensor | None,
    out: Tensor | None,
) -> Tensor:
    """What the use does with a matrix, to inputs and outputs times signs of their sample."""
    shape, rule = use.output.shape, use.rule
    into, out = (None if s is None else layout.repeated(s, shape) for s in (into, out))
    assert isinstance(rule, AbstractMatrixRule)
    weight = _as_seen(use, weight)
    channel = 1 if isinstance(rule, ConvRule) else len(shape) - 1
    if isinstance(rule, EmbeddingRule):
        tokens = a.movedim(layout.dim, 0)
        result = weight[tokens]
        if into is not None:
            chosen = into.gather(1, tokens.reshape(len(into), -1)).reshape(tokens.shape)
            result = result * chosen.unsqueeze(-1)
        if use.module.padding_idx is not None:
            result = result * (tokens != use.module.padding_idx).unsqueeze(-1)
        result = result.movedim(0, layout.dim)
    elif isinstance(rule, ConvRule):
        x = padded_input(use.module, a)
        result = _CONVOLUTIONS[len(use.module.kernel_size)](
            x if into is None else x * _in_windows(into, x, use.module),
            weight,
            stride=use.module.stride,
            dilation=use.module.dilation,
            groups=use.module.groups,
        )
    else:
        scaled = a if into is None else a * _along(into, a, layout.dim, a.dim() - 1)
        result = scaled @ rule.matrix(use.module, weight)[0].mT
    if out is not None:
        result = result * _along(out, result, layout.dim, channel)
    return result.to(use.output.dtype)


def _direction(use: LayerUse, a: Tensor, layout: Layout, key: str, noise: RankOneNoise) -> Tensor:
    shape, rule = use.output.shape, use.rule

    def placed(values: Tensor, *dims: int) -> Tensor:
        """Values of each sample, laid along its rows and these dimensions of the output."""
        aligned = [shape[dim] if dim in dims else 1 for dim in range(len(shape))]
        return laid_along(values, aligned, layout, shape)

    if isinstance(rule, ScaleRule):
        scale = rule.prepare(use.module, a, shape, layout, _NOTHING)
        if scale.channel_first:
            single = scale.shape.numel() == 1
            along = placed(noise.first) if single else placed(noise.first, 1)
        else:
            along = placed(noise.first, *range(len(shape) - len(scale.shape), len(shape)))
        return along if key == "bias" else along * scale.basis
    if isinstance(rule, BroadcastRule):
        view = use.operands[key].taken(noise.first)
        aligned = use.module.aligned(key, len(shape))
        along = laid_along(view, aligned, layout, shape)
        return along * a if key == "weight" else along
    channel = 1 if isinstance(rule, ConvRule) else len(shape) - 1
    if key == "bias":
        return placed(noise.first, channel)
    assert isinstance(rule, AbstractMatrixRule)
    assert noise.second is not None
    out, into = (noise.first, noise.second) if rule.rows_first else (noise.second, noise.first)
    into = layout.repeated(into, shape)
    if isinstance(rule, EmbeddingRule):
        tokens = a.movedim(layout.dim, 0)
        signs = into.gather(1, tokens.reshape(len(into), -1)).reshape(tokens.shape)
        if use.module.padding_idx is not None:
            signs = signs * (tokens != use.module.padding_idx)
        return signs.movedim(0, layout.dim).unsqueeze(-1) * placed(out, channel)
    if isinstance(rule, ConvRule):
        inner = _filtered(use.module, a, into)  # (R, groups, positions…)
        by_row = layout.repeated(out, shape)
        by_group = by_row.reshape(len(into), inner.shape[1], -1, *[1] * (inner.dim() - 2))
        return (inner.unsqueeze(2) * by_group).flatten(1, 2)
    assert isinstance(rule, LinearRule)
    return _inner(a, into, layout.dim) * placed(out, channel)


_NOTHING = ContractionRequest(kappa=False, num_columns=1, contract=False)


def _inner(a: Tensor, vectors: Tensor, rows: int) -> Tensor:
    """⟨a, v⟩ over the last dimension, with a vector of its own for every row."""
    if rows == 0:  # without a product as large as the input
        by_row = a.reshape(len(a), -1, a.shape[-1])
        return (by_row @ vectors[:, :, None]).reshape(*a.shape[:-1], 1)
    return (a * _along(vectors, a, rows, a.dim() - 1)).sum(dim=-1, keepdim=True)


def _along(values: Tensor, like: Tensor, rows: int, dim: int) -> Tensor:
    """Values of each row, of shape (rows, size), laid along two dimensions of a tensor."""
    view = [1] * like.dim()
    view[rows], view[dim] = values.shape
    return (values if rows < dim else values.mT).reshape(view)


def _in_windows(signs: Tensor, x: Tensor, module: Any) -> Tensor:
    """Signs of each row for every channel, or for every entry of a window, laid along its input.

    The windows must not overlap where each entry has its own.
    """
    if signs.shape[1] == x.shape[1]:
        return signs.reshape(*signs.shape, *[1] * (x.dim() - 2))
    window = signs.reshape(len(signs), x.shape[1], *module.kernel_size)
    sizes = x.shape[2:]
    for dim, (size, stride) in enumerate(zip(sizes, module.stride, strict=True), start=2):
        places = torch.arange(size, device=x.device) % stride
        inside = places.clamp(max=window.shape[dim] - 1)  # the others are in no window
        window = window.index_select(dim, inside)
    return window


def _filtered(module: Any, a: Tensor, kernels: Tensor) -> Tensor:
    """A convolution of every row of the input with a kernel of its own, the same in all groups."""
    x = padded_input(module, a)
    rows, channels = x.shape[:2]
    groups = module.groups
    weight = kernels.reshape(rows, 1, channels // groups, *module.kernel_size)
    weight = weight.expand(-1, groups, *[-1] * (weight.dim() - 2)).flatten(0, 1)
    result = _CONVOLUTIONS[len(module.kernel_size)](
        x.reshape(1, rows * channels, *x.shape[2:]),
        weight,
        stride=module.stride,
        dilation=module.dilation,
        groups=rows * groups,
    )
    return result.reshape(rows, groups, *result.shape[2:])


def output_change(use: LayerUse, change: Tensor) -> Tensor:
    """Δ a_t at every position, for a given change that is the same for all samples.

    If the use has its input with a graph, the result has one too.
    """
    a = use.input if use.live_input is None else use.live_input
    rule, weight = use.rule, _as_seen(use, change)
    if a.is_floating_point():
        a = a.to(weight.dtype)  # under autocast the layer itself did that
    if isinstance(rule, EmbeddingRule):
        result = weight[a]
        if use.module.padding_idx is not None:
            result = result * (a != use.module.padding_idx).unsqueeze(-1)
    elif isinstance(rule, ConvRule):
        result = _CONVOLUTIONS[len(use.module.kernel_size)](
            padded_input(use.module, a),
            weight,
            stride=use.module.stride,
            dilation=use.module.dilation,
            groups=use.module.groups,
        )
    else:
        assert isinstance(rule, AbstractMatrixRule)
        result = a @ rule.matrix(use.module, weight)[0].mT
    return result.to(use.output.dtype)
