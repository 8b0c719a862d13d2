"""Elementwise scales: affine parameters of normalization layers, and PReLU slopes."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layer_rule import AbstractLayerGradients, AbstractRule, ContractionRequest
from .layout import Layout


@dataclasses.dataclass
class ScaleGradients(AbstractLayerGradients):
    """One use of y = γ ∘ basis(a) + β."""

    layout: Layout
    basis: Tensor
    channel_first: bool
    shape: torch.Size  # of γ

    def gradients(self, delta: Tensor) -> dict[str, Tensor]:
        """Sums over the dimensions that γ is broadcast along."""
        if self._fusible(delta):
            return self._fused(delta)
        return {"weight": self._reduce(delta * self.basis), "bias": self._reduce(delta)}

    def _fusible(self, delta: Tensor) -> bool:
        on_cpu = (
            delta.device.type == "cpu"
        )  # on a GPU columns run under vmap, which the fused kernel does not support
        plain = self.layout.dim == 0 and self.layout.repeats(delta.shape) == 1
        return on_cpu and plain and self.channel_first and self.shape.numel() == delta.shape[1]

    def _fused(self, delta: Tensor) -> dict[str, Tensor]:
        """Both sums in one pass, by batch norm with (sample, channel) pairs as its channels."""
        num_samples, channels = delta.shape[:2]
        rows = num_samples * channels
        zeros, ones = delta.new_zeros(rows), delta.new_ones(rows)
        _, weight, bias = torch.ops.aten.native_batch_norm_backward(
            delta.reshape(1, rows, -1),
            self.basis.reshape(1, rows, -1),
            ones,
            zeros,
            ones,
            None,
            None,
            False,
            0.0,
            [False, True, True],
        )
        return {"weight": weight.view(-1, channels), "bias": bias.view(-1, channels)}

    def _reduce(self, x: Tensor) -> Tensor:
        if self.channel_first:
            x = x.flatten(2).sum(dim=2) if x.dim() > 2 else x
            x = self.layout.split(x).sum(dim=1)
            return x.sum(dim=1, keepdim=True) if self.shape.numel() == 1 else x
        split = self.layout.split(x)
        return split.reshape(len(split), -1, *self.shape).sum(dim=1)


class ScaleRule(AbstractRule):
    """Affine parameters of normalization layers, and PReLU slopes."""

    def leading(self, module: Any, out: torch.Size) -> int:
        """The first for channel-first kinds; for the others all dimensions before those of γ."""
        if isinstance(module, nn.LayerNorm | nn.RMSNorm):
            return len(out) - len(module.normalized_shape)
        return 1

    def prepare(
        self, module: Any, a: Tensor, out: torch.Size, layout: Layout, request: ContractionRequest
    ) -> ScaleGradients:
        """Normalize the input, without γ and β."""
        trailing = isinstance(module, nn.LayerNorm | nn.RMSNorm)
        weight = getattr(module, "weight", None)
        shape = torch.Size([1]) if weight is None else weight.shape
        return ScaleGradients(layout, _basis(module, a), not trailing, shape)


def _basis(module: Any, a: Tensor) -> Tensor:
    """The normalized input, which γ multiplies; for PReLU the negative part of the input."""
    if isinstance(module, nn.LayerNorm):
        return F.layer_norm(a, module.normalized_shape, None, None, module.eps)
    if isinstance(module, nn.RMSNorm):
        return F.rms_norm(a, list(module.normalized_shape), None, module.eps)
    if isinstance(module, nn.GroupNorm):
        return F.group_norm(a, module.num_groups, None, None, module.eps)
    if isinstance(module, nn.PReLU):
        return a.clamp(max=0)
    if isinstance(module, nn.modules.instancenorm._InstanceNorm):
        stats = module.running_mean, module.running_var
        use_input = not module.track_running_stats
        return F.instance_norm(a, *stats, None, None, use_input, 0.0, module.eps)
    assert isinstance(module, nn.modules.batchnorm._BatchNorm)
    return F.batch_norm(
        a, module.running_mean, module.running_var, None, None, False, 0.0, module.eps
    )
