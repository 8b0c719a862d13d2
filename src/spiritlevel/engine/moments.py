"""Sums over samples that give a weighted mean and its sampling error for any group of rows."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from ..model.distributed import Processes


class Moments:
    """Σv, Σvvᵀ and Σvw over samples, for named rows v and sample weights w, in float64.

    The mean of a group of rows is Σ_rows Σ_n v / Σ_n w. Since products of rows are summed too, the
    standard error of any such group needs no second pass over the data.
    """

    def __init__(self, names: Iterable[str], device: torch.device) -> None:
        """One row per name."""
        self.index = {name: i for i, name in enumerate(names)}
        rows = len(self.index)
        zeros = {"dtype": torch.float64, "device": device}
        self.sums = torch.zeros(rows, **zeros)  # type: ignore[call-overload]
        self.products = torch.zeros(rows, rows, **zeros)  # type: ignore[call-overload]
        self.with_weights = torch.zeros(rows, **zeros)  # type: ignore[call-overload]
        self.weights = torch.zeros(2, **zeros)  # type: ignore[call-overload]
        self.count = 0

    def add(self, rows: Tensor, weights: Tensor) -> None:
        """`rows` has shape (names, N), `weights` has shape (N,); both float64."""
        self.sums += rows.sum(dim=1)
        self.products += rows @ rows.T
        self.with_weights += rows @ weights
        self.weights += torch.stack([weights.sum(), weights.square().sum()])
        self.count += rows.shape[1]

    def tensors(self) -> list[Tensor]:
        """Everything that is a sum over samples."""
        return [self.sums, self.products, self.with_weights, self.weights]

    def reduce(self, processes: Processes) -> None:
        """Add up the sums over all processes, and fetch them: single numbers are read from now on.

        On a GPU each of them would be a wait.
        """
        processes.sum_(*self.tensors())
        self.count = sum(processes.gather(self.count))
        self.sums, self.products = self.sums.cpu(), self.products.cpu()
        self.with_weights, self.weights = self.with_weights.cpu(), self.weights.cpu()

    @property
    def total_weight(self) -> float:
        """The sum of all sample weights."""
        return float(self.weights[0])

    def mean(self, names: Iterable[str], factors: Iterable[float] | None = None) -> float:
        """The sum of the rows' means, each times its factor."""
        return float(self.combination(names, factors) @ self.sums) / self.total_weight

    def stderr(self, names: Iterable[str], factors: Iterable[float] | None = None) -> float | None:
        """Standard error of `mean` over draws of the samples; None for a single sample.

        >>> moments = Moments(["a"], torch.device("cpu"))
        >>> moments.add(torch.tensor([[1.0, 2.0, 3.0]]).double(), torch.ones(3).double())
        >>> moments.mean(["a"]), round(moments.stderr(["a"]), 4)   # std 1 over √3
        (2.0, 0.5774)
        """
        if self.count < 2:
            return None
        names, factors = list(names), None if factors is None else list(factors)
        # the residuals of the ratio estimate
        squares = self.spread(names, factors, self.mean(names, factors))
        return math.sqrt(max(squares, 0.0) * self.count / (self.count - 1)) / self.total_weight

    def spread(self, names: Iterable[str], factors: Iterable[float] | None, value: float) -> float:
        """Σ_n (v_n − value·w_n)² for the rows v with these factors."""
        c = self.combination(names, factors)
        squares = float(c @ self.products @ c) - 2 * value * float(c @ self.with_weights)
        return squares + value**2 * float(self.weights[1])

    def combination(self, names: Iterable[str], factors: Iterable[float] | None) -> Tensor:
        """A vector with each name's factor in its row."""
        rows = [self.index[name] for name in names]
        c = torch.zeros_like(self.sums)
        values = [1.0] * len(rows) if factors is None else list(factors)
        c[rows] = torch.tensor(values, dtype=c.dtype, device=c.device)
        return c


def without_noise(total: float, noise: float, *, count: int, dof: float) -> float | None:
    """The variance between `count` numbers, `noise` of which is their own; None if that hides it.

    `noise` is known from `dof` degrees of freedom. A difference that is no larger than its own
    error may well be due to chance, and says nothing.

    >>> without_noise(3.0, 1.0, count=65, dof=64), without_noise(1.1, 1.0, count=65, dof=64)
    (2.0, None)
    """
    rest = total - noise
    if noise <= 0.0:
        return max(rest, 0.0)
    error = 2 * noise * (noise + 2 * rest) / (count - 1) + 2 * noise**2 / dof
    return rest if rest > 0.0 and rest**2 > error else None
