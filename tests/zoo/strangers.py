"""Networks in whose code no layer says which symmetries it has."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations


class Bare(nn.Module):
    """Parameters of the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = (nn.Parameter(torch.randn(6, 4)), nn.Parameter(torch.randn(3, 6)))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x @ self.first.T) @ self.last.T


class LayerScale(nn.Module):
    """A residual block behind a small learned gain."""

    def __init__(self, gain: float = 1e-4) -> None:
        super().__init__()
        self.into, self.up, self.down = nn.Linear(4, 4), nn.Linear(4, 5), nn.Linear(5, 4)
        self.gain, self.head = nn.Parameter(gain * torch.ones(4)), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.into(x).tanh()
        return self.head(h + self.gain * self.down(F.gelu(self.up(h))))


class LowRank(nn.Module):
    """A frozen-style weight with an update of two factors, as adapters have it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(5, 4)
        self.a, self.b = nn.Parameter(torch.randn(2, 5)), nn.Parameter(torch.randn(4, 2))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.base(x) + x @ self.a.T @ self.b.T))


class Temperature(nn.Module):
    """A learned temperature of the logits, and a norm written by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.head = nn.Linear(4, 5), nn.Linear(5, 3)
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        h = self.into(x)
        h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)
        return self.temperature * self.head(torch.tanh(h))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x)[0][:, -1])


def normed(norm: nn.Module) -> nn.Module:
    """A layer, a normalization, a smooth function."""
    return nn.Sequential(nn.Linear(4, 6), norm, nn.Tanh(), nn.Linear(6, 3))


def weight_normed() -> nn.Module:
    """The size of every direction is free, and the gains rescale as neurons do."""
    return nn.Sequential(
        parametrizations.weight_norm(nn.Conv1d(2, 3, 2)),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(9, 3),
    )
