"""Sums over samples of slope and curvature along many directions, and their sampling errors."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from ...model.distributed import Processes

LEAST_GROUPS, MOST_GROUPS = 4, 16  # of probes: each has a matrix of pairs
GROUP_BYTES = 1 << 30  # of these matrices; the least number of groups may take more


def group_sizes(num_probes: int, size: int) -> list[int]:
    """Half of the probes are the first group, the others are divided among the rest.

    What is chosen with the first group is judged with the others, whose spread is the error.
    `size` is the number of directions, which limits the groups.

    >>> group_sizes(8, 10), group_sizes(30, 8192), group_sizes(0, 10)
    ([4, 1, 1, 1, 1], [15, 5, 5, 5], [])
    """
    groups = max(LEAST_GROUPS, min(MOST_GROUPS, GROUP_BYTES // (8 * size * size + 1)))
    first = num_probes // 2
    rest = num_probes - first
    others = min(rest, groups - 1)
    return [first, *(len(range(i, rest, others)) for i in range(others))] if num_probes else []


class Tally:
    """Σ over samples for D directions: gᵀδ, δᵀHδ, and their combination gᵀδ + ½ δᵀHδ, the rise."""

    def __init__(
        self,
        size: int,
        device: torch.device,
        *,
        pairs: bool,
        covariance: bool | None = None,
        num_probes: int = 0,
    ) -> None:
        """`pairs` keeps δᵀHδ' of every two directions, `covariance` (as `pairs`) that of rises.

        `num_probes` stand in for the columns of the GGN; 0 if nothing is random.
        """

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.float64, device=device)

        self.size, self.pairs, self.num_probes = size, pairs, num_probes
        self.group_sizes = group_sizes(num_probes, size)
        groups = max(1, len(self.group_sizes))
        self.first, self.second, self.with_weights = zeros(size), zeros(size), zeros(size)
        self.seconds, self.grams = zeros(groups, size), zeros(groups, size if pairs else 0, size)
        self.covariance = pairs if covariance is None else covariance
        self.products = zeros(size if self.covariance else 1, size)
        self.probe_variance, self.weights = zeros(size), zeros(2)
        self.count = 0

    def add(self, first: Tensor, second: Tensor, weights: Tensor) -> None:
        """`first` and `second` of shape (N, D), `weights` of shape (N,), all float64."""
        rise = first + 0.5 * second
        self.first += first.sum(dim=0)
        self.second += second.sum(dim=0)
        self.products += rise.T @ rise if self.covariance else rise.square().sum(dim=0)
        self.with_weights += weights @ rise
        self.weights += torch.stack([weights.sum(), weights.square().sum()])
        self.count += len(weights)

    def group_of(self, probe: int) -> int:
        """Which of the groups a probe belongs to; 0 without probes."""
        beyond = probe - self.num_probes // 2
        return 1 + beyond % (len(self.seconds) - 1) if self.num_probes and beyond >= 0 else 0

    def reduce(self, processes: Processes) -> Directional:
        """The means over the data of all processes, on the host."""
        sums = [self.first, self.second, self.seconds, self.grams, self.products]
        processes.sum_(*sums, self.with_weights, self.probe_variance, self.weights)
        count = sum(processes.gather(self.count))
        total = float(self.weights[0])
        first, second = (each.cpu() / total for each in sums[:2])
        gram = self.grams.sum(dim=0) / (total * max(self.num_probes, 1)) if self.pairs else None
        return Directional(
            first=first,
            second=second,
            gram=None if gram is None else gram.cpu(),
            groups=self._groups(total, count) if self.num_probes else None,
            probe_stderr=self.probe_variance.cpu().sqrt() / total,
            count=count,
            total=total,
            products=self.products.cpu(),
            with_weights=self.with_weights.cpu(),
            squared_weights=float(self.weights[1]),
        )

    def _groups(self, total: float, count: int) -> ProbeGroups:
        scale = torch.tensor(self.group_sizes).to(self.first)[:, None] * total
        grams = None
        if self.pairs:  # in place: these are the largest tensors of all
            self.grams /= scale[:, :, None]
            grams = self.grams.to(torch.float32).cpu()  # which probes are wrong by percents, anyway
        return ProbeGroups(self.group_sizes, (self.seconds / scale).cpu(), grams, count)


@dataclasses.dataclass(frozen=True, eq=False)
class ProbeGroups:
    """What each group of probes gave on all data; the groups are independent of each other."""

    sizes: list[int]  # probes of each
    second: Tensor  # δᵀ GGN δ, shape (groups, D)
    grams: Tensor | None  # of every two directions, shape (groups, D, D)
    num_samples: int  # each has signs of its own

    def along(self, taken: list[int], *, joint: bool, fresh: bool) -> tuple[float, float]:
        """Σ δᵀ GGN δ over some directions, or with `joint` that of their sum, and its error.

        With `fresh` the first group is left out: directions chosen with it are judged by others.
        The spread of few groups is small by chance at times. So the error is at least √(2/draws) of
        the value, as for samples that are all alike.
        """
        if joint:
            assert self.grams is not None
            chosen = self.grams.new_zeros(self.grams.shape[1])
            chosen[taken] = 1.0
            values = (self.grams @ chosen).double() @ chosen.double()
        else:
            values = self.second[:, taken].sum(dim=1)
        values, sizes = values[int(fresh) :], torch.tensor(self.sizes[int(fresh) :]).to(values)
        mean = (sizes * values).sum() / sizes.sum()
        spread = (sizes * (values - mean).square()).sum() / (len(sizes) - 1)
        least = mean.square() * 2 / self.num_samples
        return float(mean), float((torch.maximum(spread, least) / sizes.sum()).sqrt())


@dataclasses.dataclass(frozen=True, eq=False)
class Directional:
    """Means over the data, for D directions."""

    first: Tensor  # gᵀδ
    second: Tensor  # δᵀHδ, or of the GGN
    gram: Tensor | None  # δᵀ GGN δ' of every two directions
    groups: ProbeGroups | None  # where probes stood in for the GGN's columns
    probe_stderr: Tensor  # of `second`, where random signs were used
    count: int
    total: float
    products: Tensor
    with_weights: Tensor
    squared_weights: float
    # parameters in which the outputs are not linear, and the function behind that; from columns
    bends: dict[str, str] = dataclasses.field(default_factory=dict)

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

    def with_rows(self, rows: Tensor, others: Directional) -> Directional:
        """The same, with what was found in another way for the directions numbered `rows`."""
        second, stderr = self.second.clone(), self.probe_stderr.clone()
        second[rows], stderr[rows] = others.second, others.probe_stderr
        products, with_weights = self.products.clone(), self.with_weights.clone()
        # those rises vary among each other as they were found; with other ones, as here
        products[rows[:, None], rows] = others.products
        with_weights[rows] = others.with_weights
        return dataclasses.replace(
            self, second=second, probe_stderr=stderr, products=products, with_weights=with_weights
        )
