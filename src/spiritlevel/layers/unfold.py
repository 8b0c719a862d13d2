"""Input windows of convolutions, for any number of dimensions, stride, dilation and padding."""

from __future__ import annotations

import math
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
    """The input as the kernel sees it."""
    amounts = conv_padding(module)
    if not any(amounts):
        return a
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    return F.pad(a, amounts, mode=mode)


def conv_patches(module: Any, a: Tensor) -> Tensor:
    """Windows of a convolution's input, shape (N, groups, in/groups · kernel, positions)."""
    x = padded_input(module, a)
    if len(module.kernel_size) == 2:  # torch's own im2col is faster than strided copies
        flat = F.unfold(x, module.kernel_size, module.dilation, 0, module.stride)
        return flat.unflatten(1, (module.groups, -1))
    return _windows(x, module.kernel_size, module.stride, module.dilation, module.groups)


def transposed_patches(module: Any, a: Tensor, out: torch.Size) -> Tensor:
    """Windows of a transposed convolution: a plain one on the input with zeros put between."""
    spatial = len(module.kernel_size)
    lengths = [(a.shape[2 + d] - 1) * module.stride[d] + 1 for d in range(spatial)]
    spread = a.new_zeros(*a.shape[:2], *lengths)
    spread[(..., *(slice(None, None, step) for step in module.stride))] = a
    amounts: list[int] = []
    for d in reversed(range(spatial)):
        reach = module.dilation[d] * (module.kernel_size[d] - 1)
        left = reach - module.padding[d]
        amounts += [left, out[d] + reach - lengths[d] - left]
    x = F.pad(spread, amounts)
    return _windows(x, module.kernel_size, (1,) * spatial, module.dilation, module.groups)


def average_patch(module: Any, a: Tensor) -> Tensor:
    """The mean over all output positions of the input windows, shape (N, in · kernel)."""
    x = padded_input(module, a)
    spans = [
        (x.shape[2 + d] - module.dilation[d] * (module.kernel_size[d] - 1) - 1)
        // module.stride[d]
        * module.stride[d]
        + 1
        for d in range(len(module.kernel_size))
    ]
    means = []
    for tap in torch.cartesian_prod(*(torch.arange(k) for k in module.kernel_size)).reshape(
        math.prod(module.kernel_size), -1
    ):
        starts = [int(t) * d for t, d in zip(tap, module.dilation, strict=True)]
        window = tuple(
            slice(start, start + span, step)
            for start, span, step in zip(starts, spans, module.stride, strict=True)
        )
        means.append(x[(..., *window)].flatten(2).mean(dim=2))
    return torch.stack(means, dim=2).flatten(1)


def _windows(
    x: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...], groups: int
) -> Tensor:
    spatial = len(kernel)
    for d in range(spatial):
        x = x.unfold(2 + d, dilation[d] * (kernel[d] - 1) + 1, stride[d])[..., :: dilation[d]]
    # (N, C, T…, k…) to (N, g, C/g, k…, T…): a channel's taps stay together, positions run last
    x = x.unflatten(1, (groups, -1))
    taps = tuple(range(3 + spatial, 3 + 2 * spatial))
    places = tuple(range(3, 3 + spatial))
    return x.permute(0, 1, 2, *taps, *places).flatten(3 + spatial).flatten(2, 2 + spatial)
