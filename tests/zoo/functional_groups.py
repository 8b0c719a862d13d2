"""Weights as left factors, one matrix for each expert in a single product, and bags."""

from __future__ import annotations

import torch
from torch import Tensor

from .functional_base import Network, weight


class Columns(Network):
    """Samples as columns: W x, and Wᵀ x with W kept as (in, out)."""

    kept = "w1:oi w2:io"

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2 = weight(5, 4), weight(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return (self.w2.T @ torch.matmul(self.w1, x.T).relu()).T


class ManyColumns(Network):
    """Several columns for each sample, and a smooth function of them."""

    kept = "w1:oi w2:oi"
    inputs = (2, 4)

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2 = weight(6, 4), weight(3, 6)

    def forward(self, x: Tensor) -> Tensor:
        columns = (self.w1 @ x.reshape(-1, 4).T).tanh()
        return (self.w2 @ columns).T.reshape(len(x), 2, 3).mean(dim=1)


class WeightFirst(Network):
    """einsum with the weight as its first factor."""

    kept = "w1:oi w2:io"

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2 = weight(5, 4), weight(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.einsum("oi,bi->bo", self.w1, x).relu()
        return torch.einsum("io,bi->bo", self.w2, h)


class DenseExperts(Network):
    """Every expert sees every sample: one batched product for all, and a gate."""

    kept = "up:goi down:gio gate:oi"

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.gate = weight(2, 5, 4), weight(2, 5, 3), weight(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        seen = x.expand(2, *x.shape)
        h = torch.einsum("ebi,eoi->ebo", seen, self.up).relu()
        y = torch.bmm(h, self.down)
        shares = torch.nn.functional.linear(x, self.gate).softmax(dim=1)
        return torch.einsum("ebo,be->bo", y, shares)


class ExpertsFirst(Network):
    """The same with the weights first, and several positions for each sample."""

    kept = "up:goi down:gio"
    inputs = (3, 4)

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = weight(2, 5, 4), weight(2, 5, 3)

    def forward(self, x: Tensor) -> Tensor:
        columns = x.reshape(-1, 4).T.expand(2, 4, -1)
        h = torch.bmm(self.up, columns).relu()
        y = torch.bmm(self.down.mT, h).sum(dim=0).T
        return y.reshape(len(x), 3, 3).mean(dim=1)


class Routed(Network):
    """Each sample goes to one expert, by a rule of its own: rows are gathered for each."""

    kept = "up:goi head:oi"

    def __init__(self) -> None:
        super().__init__()
        self.up, self.head = weight(2, 5, 4), weight(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        chosen = torch.nn.functional.one_hot((x[:, 0] > 0).long(), 2).to(x.dtype)
        seen = torch.einsum("be,bi->ebi", chosen, x)  # 0 where another expert is chosen
        h = torch.einsum("ebi,eoi->ebo", seen, self.up).relu().sum(dim=0)
        return torch.nn.functional.linear(h, self.head)


class MeanBag(Network):
    """An embedding bag of torch's own, which averages."""

    kept = "bag:io head:oi"
    inputs, tokens = (4,), 5

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = torch.nn.EmbeddingBag(5, 4), weight(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(self.bag(x).relu(), self.head)


class WeightedBags(Network):
    """Two bags for each sample, given by offsets, whose tokens have weights."""

    kept = "bag:io head:oi"
    inputs, tokens = (6,), 5

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = torch.nn.EmbeddingBag(5, 4, mode="sum"), weight(3, 8)

    def forward(self, x: Tensor) -> Tensor:
        shares = torch.linspace(0.5, 2.0, 6, dtype=self.head.dtype).repeat(len(x))
        starts = torch.arange(0, x.numel(), 3)
        h = self.bag(x.flatten(), starts, per_sample_weights=shares)
        return torch.nn.functional.linear(h.tanh().reshape(len(x), 8), self.head)


class UnequalBags(Network):
    """Bags of different sizes, whose tokens are not in one rectangle."""

    kept = "bag:io head:oi"
    inputs, tokens = (5,), 5

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = torch.nn.EmbeddingBag(5, 4), weight(3, 8)

    def forward(self, x: Tensor) -> Tensor:
        starts = 5 * torch.arange(len(x))[:, None] + torch.tensor([0, 2])
        h = self.bag(x.flatten(), starts.flatten())
        return torch.nn.functional.linear(h.tanh().reshape(len(x), 8), self.head)
