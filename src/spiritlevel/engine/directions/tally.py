"""Sums over samples of slope and curvature along many directions, and their sampling errors."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from ...model.distributed import Processes


class Tally:
    """Σ over samples for D directions: gᵀδ, δᵀHδ, and their combination gᵀδ + ½ δᵀHδ, the rise."""

    def __init__(self, size: int, device: torch.device, *, pairs: bool) -> None:
        """`pairs` keeps δᵀHδ' and the covariance of the rises of every two directions, too."""
        zeros = {"dtype": torch.float64, "device": device}
        self.size, self.pairs = size, pairs
        self.first = torch.zeros(size, **zeros)  # type: ignore[call-overload]
        self.second = torch.zeros(size, **zeros)  # type: ignore[call-overload]
        self.gram = torch.zeros(size if pairs else 0, size, **zeros)  # type: ignore[call-overload]
        self.products = torch.zeros(size if pairs else 1, size, **zeros)  # type: ignore[call-overload]
        self.with_weights = torch.zeros(size, **zeros)  # type: ignore[call-overload]
        self.probe_variance = torch.zeros(size, **zeros)  # type: ignore[call-overload]
        self.weights = torch.zeros(2, **zeros)  # type: ignore[call-overload]
        self.count = 0

    def add(self, first: Tensor, second: Tensor, weights: Tensor) -> None:
        """`first` and `second` of shape (N, D), `weights` of shape (N,), all float64."""
        rise = first + 0.5 * second
        self.first += first.sum(dim=0)
        self.second += second.sum(dim=0)
        self.products += rise.T @ rise if self.pairs else rise.square().sum(dim=0)
        self.with_weights += weights @ rise
        self.weights += torch.stack([weights.sum(), weights.square().sum()])
        self.count += len(weights)

    def reduce(self, processes: Processes) -> Directional:
        """The means over the data of all processes, on the host."""
        sums = [self.first, self.second, self.gram, self.products]
        processes.sum_(*sums, self.with_weights, self.probe_variance, self.weights)
        count = sum(processes.gather(self.count))
        total = float(self.weights[0])
        first, second, gram = (each.cpu() / total for each in sums[:3])
        return Directional(
            first=first,
            second=second,
            gram=gram if self.pairs else None,
            probe_stderr=self.probe_variance.cpu().sqrt() / total,
            count=count,
            total=total,
            products=self.products.cpu(),
            with_weights=self.with_weights.cpu(),
            squared_weights=float(self.weights[1]),
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Directional:
    """Means over the data, for D directions."""

    first: Tensor  # gᵀδ
    second: Tensor  # δᵀHδ, or of the GGN
    gram: Tensor | None  # δᵀ GGN δ' of every two directions
    probe_stderr: Tensor  # of `second`, where random signs were used
    count: int
    total: float
    products: Tensor
    with_weights: Tensor
    squared_weights: float

    @property
    def rise(self) -> Tensor:
        """gᵀδ + ½ δᵀHδ of each direction."""
        return self.first + 0.5 * self.second

    @property
    def covariance(self) -> Tensor:
        """Of the means of the rises over draws of the samples, (D, D) or, without pairs, (1, D)."""
        value = self.rise
        if len(self.products) == 1:
            squares = self.products[0] - 2 * value * self.with_weights
            squares = (squares + value.square() * self.squared_weights)[None]
        else:
            cross = torch.outer(value, self.with_weights)
            squares = self.products - cross - cross.T
            squares = squares + torch.outer(value, value) * self.squared_weights
        count = max(self.count, 1)
        return squares * count / max(count - 1, 1) / self.total**2

    @property
    def data_stderr(self) -> Tensor:
        """The sampling error of each rise; nan for a single sample."""
        covariance = self.covariance
        variance = covariance[0] if len(covariance) == 1 else covariance.diagonal()
        if self.count < 2:
            return torch.full_like(variance, torch.nan)
        return variance.clamp(min=0.0).sqrt()
