"""Sums over output columns, from all columns or from random probes of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from ..estimate import Estimate
from ..refine import AbstractDraws, Outlook
from .sums import Factors, Part, data_variance, pooled_estimate

MIN_SPREADS = 32  # least samples × (probes − 1) to estimate the error of output probes from

TakePass = Callable[[range | None], None]  # a pass with these probes, or with all columns


class OutputProbes(AbstractDraws):
    """Σ factor × value over rows; each draw is a probe of the columns, for all rows together."""

    least = 2  # the error of a single probe is unknown

    def __init__(
        self,
        parts: Callable[[], list[Part]],
        take_pass: TakePass,
        factors: Factors,
        *,
        num_columns: float,
    ) -> None:
        """All columns are taken where as many probes seem to be needed as `num_columns`."""
        self._parts, self._take_pass = parts, take_pass
        self._factors, self._num_columns = factors, num_columns

    @property
    def complete(self) -> bool:
        """Whether all columns were taken."""
        return self._parts()[0][0] is None

    @property
    def count(self) -> int:
        """Probes so far; 0 if all columns were taken."""
        return sum(count or 0 for count, _ in self._parts())

    @property
    def is_trusted(self) -> bool:
        """Where few samples decide, two probes may agree by chance on each of them."""
        estimate = self.estimate()
        if estimate.value == 0.0 and estimate.variance == 0.0:
            return True
        return self.count + 1 >= self._least_for_all  # a single one more is not worth a pass

    @property
    def _least_for_all(self) -> int:
        return least_probes(self._parts()[0][1].effective_samples(self._factors))

    def estimate(self) -> Estimate:
        """The estimate from all passes together."""
        parts = self._parts()
        found = pooled_estimate(
            [(count or 1, rows.estimate(self._factors, count)) for count, rows in parts]
        )
        data = data_variance([parts], self._factors, found)
        return dataclasses.replace(found, data_variance=data)

    def next_stage(self, estimate: Estimate, enough: float) -> int:
        """How many probes to have next: at least as many as make the error trusted."""
        return max(super().next_stage(estimate, enough), self._least_for_all)

    def draw(self, count: int) -> None:
        """Add a pass with the next probes."""
        self._take_pass(range(self.count, self.count + count))

    def shortcut(self, outlook: Outlook) -> bool:
        """Take all columns, where they cost no more than the probes ahead."""
        if outlook.wanted < self._num_columns:
            return False
        self._take_pass(None)
        return True


def least_probes(num_samples: float) -> int:
    """Probes from which on so many samples show how far they spread: at least two."""
    return 1 + max(1, math.ceil(MIN_SPREADS / max(num_samples, 1.0)))
