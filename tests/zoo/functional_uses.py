"""Tied and repeated weights, gains, normalizations, attention, and what cannot be read."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .functional_base import CLASSES, Network, weight


class Tied(Network):
    """A table that is also the output matrix, both by functional calls."""

    kept = "table:io"
    inputs, tokens = (3,), 6

    def __init__(self) -> None:
        super().__init__()
        self.table = weight(6, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        x = F.embedding(tokens, self.table).sum(dim=1).relu()
        return F.linear(x, self.table)[:, :CLASSES]


class TiedToALayer(Network):
    """The table of an embedding layer, used once more as a matrix."""

    kept = "table:io mix:oi"
    inputs, tokens = (3,), 6

    def __init__(self) -> None:
        super().__init__()
        self.table, self.mix = nn.Embedding(6, 4), nn.Linear(4, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.mix(self.table(tokens).mean(dim=1)).relu()
        return (x @ self.table.weight.T)[:, :CLASSES]


class Gains(Network):
    """Gains and shifts of every shape: LayerScale, a class token, positions, a temperature."""

    kept = "w:oi head:oi"
    inputs = (2, 4)

    def __init__(self) -> None:
        super().__init__()
        self.token, self.positions, self.gain = weight(1, 1, 4), weight(3, 4), weight(4)
        self.w, self.head, self.scale = weight(4, 4), weight(3, 4), weight()

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.positions
        x = x + self.gain * F.linear(x, self.w).relu()
        return self.scale * F.linear(x[:, 0] + x.mean(dim=1), self.head)


class Normed(Network):
    """Normalizations by functional calls."""

    kept = "w:oi head:oi"
    inputs = (2, 4)

    def __init__(self) -> None:
        super().__init__()
        self.w, self.head = weight(4, 4), weight(3, 4)
        self.g1, self.b1, self.g2, self.g3, self.b3 = (weight(4) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        x = F.linear(F.layer_norm(x, (4,), self.g1, self.b1), self.w).relu()
        x = F.rms_norm(x, (4,), self.g2)
        x = F.group_norm(x.transpose(1, 2), 2, self.g3, self.b3)
        return F.linear(F.prelu(x, self.b3).mean(dim=2), self.head)


class Attention(Network):
    """torch's own attention, whose projection is one packed matrix."""

    kept = "attention.in_proj_weight:oi attention.out_proj:oi head:oi"
    inputs = (3, 4)

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = weight(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        x, _ = self.attention(x, x, x, need_weights=False)
        return F.linear(x.mean(dim=1), self.head)


class CrossAttention(Network):
    """The same with other keys, so that the packed matrix is used in parts, time first."""

    kept = "attention.in_proj_weight:oi attention.out_proj:oi head:oi"
    inputs = (3, 4)

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(4, 2), weight(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1)
        x, _ = self.attention(x[:1], x, x, need_weights=False)
        return F.linear(x[0], self.head)


class Recurrent(Network):
    """A recurrent cell, whose steps are plain products on a CPU."""

    kept = "cell.weight_ih_l0:oi cell.weight_hh_l0:oi head:oi"
    inputs = (2, 4)

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRU(4, 2, batch_first=True), weight(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.cell(x)[0][:, -1], self.head)


class Bounded(Network):
    """A function of a weight, which no product uses as it is: the generic route, and still a κ."""

    kept = "w:oi head:oi"
    generic = frozenset({"w"})

    def __init__(self) -> None:
        super().__init__()
        self.w, self.head = weight(4, 4), weight(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.linear(x, self.w.tanh()).relu(), self.head)


class LowRank(Network):
    """A product of two weights, which is not a use by samples."""

    kept = "a:oi b:oi head:oi"
    generic = frozenset({"a", "b"})

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = weight(4, 2), weight(2, 4), weight(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.linear(x, self.a @ self.b).relu(), self.head)


class Left(Network):
    """A matrix on the left of a batch of columns."""

    kept = "w:oi head:oi"
    inputs = (4, 2)

    def __init__(self) -> None:
        super().__init__()
        self.w, self.head = weight(5, 4), weight(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear((self.w @ x).relu().mean(dim=2), self.head)


class Expanded(Network):
    """A matrix that is repeated for every sample before a batched product."""

    kept = "head:oi"
    inputs = (2, 4)

    def __init__(self) -> None:
        super().__init__()
        self.w, self.head = weight(4, 4), weight(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.bmm(x, self.w.expand(len(x), -1, -1)).relu()
        return F.linear(x.mean(dim=1), self.head)


class Repeated(Network):
    """One matrix that is used again and again, with a gain that is too."""

    kept = "w:oi head:oi"

    def __init__(self) -> None:
        super().__init__()
        self.w, self.gain, self.head = weight(4, 4), weight(4), weight(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.gain * F.linear(x, self.w).relu()
        return F.linear(x, self.head)
