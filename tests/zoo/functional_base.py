"""What the networks with functional calls have in common, and how their matrices are kept."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from spiritlevel.testing.references import MatrixView

CLASSES = 3


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape) / 2)


class Network(nn.Module):
    """Says how its matrices are `kept`, and the shape of a sample in `inputs`."""

    kept = ""
    generic: frozenset[str] = frozenset()  # parameters whose uses cannot be read
    inputs: tuple[int, ...] = (4,)
    tokens = 0  # if the inputs are tokens: how many there are

    @property
    def matrices(self) -> dict[str, str]:
        """How each matrix is kept, by layer or own name."""
        return dict(pair.split(":") for pair in self.kept.split())

    def batch(self, size: int, generator: torch.Generator) -> Tensor:
        if self.tokens:
            return torch.randint(self.tokens, (size, *self.inputs), generator=generator)
        return torch.randn(size, *self.inputs, generator=generator, dtype=torch.float64)


def view_of(kind: str, shape: torch.Size) -> MatrixView:
    """The rows of each group's matrix, and the input neurons, as indices of the parameter."""
    index = torch.arange(shape.numel()).view(shape)
    if kind == "oi":
        index = index.reshape(-1, shape[-1])
        return MatrixView([list(index)], list(index.T))
    if kind == "io":
        return MatrixView([list(index.T)], list(index))
    if kind == "gio":
        return MatrixView([list(part.T) for part in index], [j for part in index for j in part])
    if kind == "goi":
        return MatrixView([list(part) for part in index], [j for part in index for j in part.T])
    parts = index.chunk(int(kind[-1]))
    if kind.startswith("transposed"):
        parts = tuple(part.transpose(0, 1) for part in parts)
    rows = [[row.flatten() for row in part] for part in parts]
    return MatrixView(rows, [part[:, j].flatten() for part in parts for j in range(part.shape[1])])
