"""Parts whose samples take different routes."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def goes_left(x: Tensor) -> Tensor:
    """One decision a row, from its first feature."""
    return x[..., 0] > 0


class IndexExperts(nn.Module):
    """Each expert sees only its rows; an expert without rows is not called."""

    def __init__(self, left: nn.Module, right: nn.Module) -> None:
        super().__init__()
        self.experts = nn.ModuleList([left, right])

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        out = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            index = (goes_left(rows) == bool(number)).nonzero().flatten()
            if len(index):
                out = out.index_add(0, index, expert(rows[index]))
        return out.reshape(x.shape)


class EmptyExperts(nn.Module):
    """As above, but an expert without rows is called with none."""

    def __init__(self, left: nn.Module, right: nn.Module) -> None:
        super().__init__()
        self.experts = nn.ModuleList([left, right])

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        out = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            chosen = goes_left(rows) == bool(number)
            out[chosen] = expert(rows[chosen])
        return out.reshape(x.shape)


class MaskExperts(nn.Module):
    """Both experts see everything, and a mask chooses."""

    def __init__(self, left: nn.Module, right: nn.Module) -> None:
        super().__init__()
        self.left, self.right = left, right

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(goes_left(x)[..., None], self.left(x), self.right(x))


class TopExperts(nn.Module):
    """A router takes the best expert of two, weighted by its probability."""

    def __init__(self, left: nn.Module, right: nn.Module) -> None:
        super().__init__()
        self.router = nn.Linear(4, 2)
        self.experts = nn.ModuleList([left, right])

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        weight, best = self.router(rows).softmax(dim=-1).topk(1, dim=-1)
        out = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            index = (best[:, 0] == number).nonzero().flatten()
            if len(index):
                out = out.index_add(0, index, weight[index] * expert(rows[index]))
        return out.reshape(x.shape)


class EarlyExit(nn.Module):
    """Some rows leave before the inside."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        stays = goes_left(rows)
        if not bool(stays.any()):
            return x
        out = rows.clone()
        out[stays] = self.inner(rows[stays])
        return out.reshape(x.shape)


class RepeatedByRow(nn.Module):
    """A row goes through the inside once, twice or three times."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        times = 1 + goes_left(rows).long() + (rows[:, 1] > 0.5).long()
        for step in range(int(times.max())):
            active = (times > step)[:, None]
            rows = torch.where(active, self.inner(rows), rows)
        return rows.reshape(x.shape)


class BranchPerBatch(nn.Module):
    """A batch in which every row agrees takes a shortcut with the same result."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        chosen = goes_left(x)[..., None]
        if bool(chosen.all()):
            return self.inner(x)
        if not bool(chosen.any()):
            return x
        return torch.where(chosen, self.inner(x), x)
