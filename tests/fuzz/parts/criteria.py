"""Losses that users write: subclasses, functions, and other ways to reduce."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Focal(nn.CrossEntropyLoss):
    """A subclass with a forward of its own."""

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(z, y, reduction="none")
        return ((1 - (-loss).exp()) ** 2 * loss).mean()


class PlainCrossEntropy(nn.CrossEntropyLoss):
    """A subclass that changes nothing."""


class QuarticError(nn.MSELoss):
    """A subclass that raises to the fourth power, with all reductions."""

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        loss = (z - y) ** 4
        return loss if self.reduction == "none" else loss.mean()


class OwnModule(nn.Module):
    """A loss module without a reduction, one value a sample."""

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        return (z - y).cosh().log().sum(dim=-1)


class OwnMean(nn.Module):
    """A loss module that averages by itself."""

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        return (z - y).square().mean() + 0.1 * z.exp().mean()


def saddle(z: Tensor, y: Tensor) -> Tensor:
    """Convex in some directions and concave in others."""
    gap = z - y
    return gap[:, 0] * gap[:, 1] + gap[:, 2] ** 3 + gap.cos().sum(dim=1)


def elementwise(z: Tensor, y: Tensor) -> Tensor:
    """One value for each output."""
    return torch.log1p((z - y).square())


def linear(z: Tensor, y: Tensor) -> Tensor:
    """No curvature of its own."""
    return (z * y).sum(dim=1)


def scalar(z: Tensor, y: Tensor) -> Tensor:
    """The mean over the batch, where one value a sample is needed."""
    return (z - y).square().mean()


def contrastive(z: Tensor, y: Tensor) -> Tensor:
    """The loss of a sample depends on the other samples."""
    return (z - z.mean(dim=0)).square().sum(dim=1) + (z - y).square().sum(dim=1)


def weighted(z: Tensor, y: Tensor) -> Tensor:
    """Class weights inside a function; the mean is over samples."""
    weight = torch.tensor([0.5, 1.0, 4.0], dtype=z.dtype)
    return F.cross_entropy(z, y, weight=weight, reduction="none")


def led(z: Tensor) -> Tensor:
    """Cross-entropy where every label is 0, without a difference of numbers next to 1."""
    others = (z[..., 1:] - z[..., :1]).logsumexp(dim=-1)
    shared = torch.where(others > 0, -others, others).exp()
    return (torch.log1p(shared) + others.clamp(min=0)).mean()
