"""Input windows of convolutions, for any number of dimensions, stride, dilation and padding."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def conv_padding(module: Any) -> list[int]:
    """The padding of a convolution as `F.pad` takes it: last dimension first, left and right."""
    if module.padding == "valid":
        return [0, 0] * len(module.kernel_size)
    amounts = []
    for dim in reversed(range(len(module.kernel_size))):
        if module.padding == "same":
            total = module.dilation[dim] * (module.kernel_size[dim] - 1)
            amounts += [total // 2, total - total // 2]
        else:
            amounts += [module.padding[dim], module.padding[dim]]
    return amounts


def padded_input(module: Any, a: Tensor) -> Tensor:
    """The input with the module's padding applied."""
    amounts = conv_padding(module)
    if not any(amounts):
        return a
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    return F.pad(a, amounts, mode=mode)


def conv_windows(module: Any, a: Tensor) -> Tensor:
    """Windows of a conv's input as a view, shape (N, groups, positions…, kernel…, in/groups)."""
    x = padded_input(module, a)
    return _windows(x, module.kernel_size, module.stride, module.dilation, module.groups)


def transposed_windows(module: Any, a: Tensor, out: torch.Size) -> Tensor:
    """Windows of a transposed convolution: a plain one of the input with zeros inserted."""
    spatial = len(module.kernel_size)
    lengths = [(a.shape[2 + d] - 1) * module.stride[d] + 1 for d in range(spatial)]
    dilated = a.new_zeros(*a.shape[:2], *lengths)
    dilated[_window([slice(None, None, step) for step in module.stride])] = a
    amounts: list[int] = []
    for d in reversed(range(spatial)):
        reach = module.dilation[d] * (module.kernel_size[d] - 1)
        left = reach - module.padding[d]
        amounts += [left, out[d] + reach - lengths[d] - left]
    x = F.pad(dilated, amounts)
    return _windows(x, module.kernel_size, (1,) * spatial, module.dilation, module.groups)


def average_patch(module: Any, a: Tensor) -> Tensor:
    """The mean over all output positions of the input windows, shape (N, kernel · in)."""
    x = padded_input(module, a)
    spans = [
        (x.shape[2 + d] - module.dilation[d] * (module.kernel_size[d] - 1) - 1)
        // module.stride[d]
        * module.stride[d]
        + 1
        for d in range(len(module.kernel_size))
    ]
    means = []
    for tap in itertools.product(*(range(k) for k in module.kernel_size)):
        starts = [t * d for t, d in zip(tap, module.dilation, strict=True)]
        window = [
            slice(start, start + span, step)
            for start, span, step in zip(starts, spans, module.stride, strict=True)
        ]
        means.append(x[_window(window)].flatten(2).mean(dim=2))
    return torch.stack(means, dim=1).flatten(1)


def _window(slices: list[slice]) -> tuple[slice, ...]:
    """An index that selects all samples and channels."""
    return (slice(None), slice(None), *slices)


def _windows(
    x: Tensor,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> Tensor:
    spatial = len(kernel)
    x = x.movedim(1, -1).contiguous()  # channels last: windows are then copied in long runs
    for d in range(spatial):
        x = x.unfold(1 + d, dilation[d] * (kernel[d] - 1) + 1, stride[d])[..., :: dilation[d]]
    x = x.unflatten(1 + spatial, (groups, -1))  # (N, T…, g, C/g, k…)
    positions = tuple(range(1, 1 + spatial))
    taps = tuple(range(3 + spatial, 3 + 2 * spatial))
    return x.permute(0, 1 + spatial, *positions, *taps, 2 + spatial)  # (N, g, T…, k…, C/g)
