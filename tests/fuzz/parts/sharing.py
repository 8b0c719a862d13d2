"""Parts that use a weight more than once."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Twice(nn.Module):
    """One module called twice in a row."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.inner(x))


class TwoNames(nn.Module):
    """One module registered under two names, as in ALBERT."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first = inner
        self.second = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


class TwoNamesInParallel(nn.Module):
    """One module registered under two names, on two inputs."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first = inner
        self.second = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x) + self.second(x.flip(-1))


class TiedWeights(nn.Module):
    """Two linear layers share a weight and have their own biases."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.relu(self.a(x)))


class TiedTranspose(nn.Module):
    """An autoencoder: the decoder is the transposed encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.relu(self.encoder(x)), self.encoder.weight.T)


class TiedBias(nn.Module):
    """Two layers share a bias and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
        self.b.bias = self.a.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.relu(self.a(x)))


class Siamese(nn.Module):
    """Both halves of a doubled batch go through one module."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.inner(torch.cat([x, x.flip(-1)])).chunk(2)
        return a + 0.5 * b


class Interleaved(nn.Module):
    """Every sample is followed by its mirror image, and both go through one module."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        pairs = torch.stack([x, x.flip(-1)], dim=1).flatten(0, 1)
        out = self.inner(pairs)
        return out[0::2] - 0.5 * out[1::2]


class OwnRecurrence(nn.Module):
    """A plain recurrent cell, written as a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.states = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros_like(x[:, 0])
        states = []
        for t in range(x.shape[1]):
            state = F.relu(self.inputs(x[:, t]) + self.states(state))
            states.append(state)
        return torch.stack(states, dim=1)


class TorchRecurrence(nn.Module):
    """A recurrent layer of torch."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.cells = getattr(nn, kind)(4, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cells(x)[0]


class UsePerPosition(nn.Module):
    """One call a position: the number of uses is the length of the sequence."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        total = sum(self.inner(x[:, t]) for t in range(x.shape[1]))
        return x + total[:, None]
