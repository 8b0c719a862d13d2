"""Parts that change how others are wired: residual sums, gates, checkpoints, frozen and unused."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Residual(nn.Module):
    """The input is added."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class ResidualInPlace(nn.Module):
    """The input is added in place, and the sum rectified in place."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        out = self.inner(x) * 1.5
        out += x
        return out.relu_()


class LayerScale(nn.Module):
    """A residual branch behind one small factor a feature."""

    def __init__(self, inner: nn.Module, gain: float, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.inner = inner
        self.gain = nn.Parameter(torch.full(shape, gain))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gain * self.inner(x)


class ReZero(nn.Module):
    """A residual branch behind one factor."""

    def __init__(self, inner: nn.Module, gain: float) -> None:
        super().__init__()
        self.inner = inner
        self.gain = nn.Parameter(torch.tensor(gain))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gain * self.inner(x)


class Product(nn.Module):
    """Two branches multiply each other."""

    def __init__(self, left: nn.Module, right: nn.Module) -> None:
        super().__init__()
        self.left, self.right = left, right

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) * self.right(x)


class Highway(nn.Module):
    """A learned gate mixes a branch with the input."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.gate, self.inner = nn.Linear(4, 4), inner

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x).sigmoid()
        return gate * self.inner(x) + (1 - gate) * x


class SqueezeExcite(nn.Module):
    """A factor for each channel, computed from the mean over the image."""

    def __init__(self) -> None:
        super().__init__()
        self.excite = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.excite(x.mean(dim=(2, 3))).sigmoid()[:, :, None, None]


class Temperature(nn.Module):
    """One learned factor, stored as its logarithm."""

    def __init__(self) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.log.exp()


class Checkpointed(nn.Module):
    """The inside is computed again in the backward pass."""

    def __init__(self, inner: nn.Module, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.reentrant = inner, reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


class Frozen(nn.Module):
    """The parameters inside are not trained."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class Unused(nn.Module):
    """A layer that is registered and never called."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x


class InnerAutocast(nn.Module):
    """The inside runs in bfloat16, whatever is around it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.inner(x).to(x.dtype)


class Sine(nn.Module):
    """A smooth function that is not monotone."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x)


class Absolute(nn.Module):
    """Piecewise linear, without a flat part."""

    def forward(self, x: Tensor) -> Tensor:
        return x.abs()


class ClampInPlace(nn.Module):
    """Piecewise linear, written in place."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * 1.0).clamp_(-0.7, 0.9)


class LastMax(nn.Module):
    """The larger of each feature and its neighbour."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.maximum(x, x.roll(1, dims=-1))


class SoftmaxMix(nn.Module):
    """A softmax over the features."""

    def forward(self, x: Tensor) -> Tensor:
        return F.softmax(x, dim=-1) * 3.0
