"""Sums over output columns, from all columns or from random probes of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ...math.student import t_quantile
from ...records.measurements import Cost
from ..estimate import Estimate
from ..refine import AbstractDraws, Outlook
from .leading import Leading, largest_excess, least_probes
from .sums import Factors, Part, cautious, data_variance, mean_estimate

TakePass = Callable[[range | None], None]  # a pass with these probes, or with all columns


class OutputProbes(AbstractDraws):
    """Σ factor × value over rows; each draw is a probe of the columns, for all rows together."""

    least = 2  # the error of a single probe is unknown
    price, price_of_stage = 2 / 3, 1 / 3  # a backward, after a forward

    def __init__(
        self,
        parts: Callable[[], list[Part]],
        take_pass: TakePass,
        factors: Factors,
        *,
        num_columns: float,
        leading: Leading | None = None,
        probe: Cost | None = None,
    ) -> None:
        """All columns are taken where as many probes seem to be needed as `num_columns`.

        With `leading`, those of the most likely classes are where that is cheaper. `probe` is what
        a pass with a single one costs, for one sample.
        """
        if probe is not None:
            self.price, self.price_of_stage = 2 * probe.backwards / 3, probe.forwards / 3
        self._parts, self._take_pass = parts, take_pass
        self._factors, self._num_columns, self._leading = factors, num_columns, leading

    @property
    def complete(self) -> bool:
        """Whether all columns were taken."""
        return self._parts()[0][0] is None

    @property
    def count(self) -> int:
        """Probes so far; 0 if all columns were taken."""
        return sum(count or 0 for count, _ in self._parts())

    @property
    def passes(self) -> int:
        """Backward passes so far, and the leading columns of the next pass."""
        leading = self._leading
        return self.count if leading is None else leading.spent + leading.count

    @property
    def is_trusted(self) -> bool:
        """Where few samples decide, two probes may agree by chance on each of them."""
        drawn = self._mean()
        if (drawn.value == 0.0 and drawn.variance == 0.0) or self._has_leading:
            return True  # the error of what leading columns leave is then made large enough
        return self._are_many

    @property
    def _has_leading(self) -> bool:
        return self._leading is not None and self._leading.count > 0

    @property
    def _are_many(self) -> bool:
        return self.count + 1 >= self._least_for_all  # a single one more is not worth a pass

    @property
    def _least_for_all(self) -> int:
        return least_probes(self._parts()[0][1].effective_samples(self._factors))

    def estimate(self) -> Estimate:
        """The estimate from all passes together."""
        parts, drawn = self._parts(), self._mean()
        found = cautious(drawn)
        if self._has_leading and not self._are_many:
            found = _at_worst(drawn, found, self.count)
        exact = parts[0][1].of_leading(self._factors)
        found = dataclasses.replace(found, value=exact + found.value)
        data = data_variance([parts], self._factors, found)
        return dataclasses.replace(found, data_variance=data)

    def _mean(self) -> Estimate:
        """What the probes have of it, as if the variance were well known."""
        parts = self._parts()
        return mean_estimate(
            [(count or 1, rows.estimate(self._factors, count)) for count, rows in parts]
        )

    def next_stage(self, estimate: Estimate, enough: float) -> int:
        """How many probes to have next: at least as many as make the error trusted."""
        return max(super().next_stage(estimate, enough), self._least_for_all)

    def draw(self, count: int) -> None:
        """Add a pass with the next probes."""
        self._take_pass(range(self.count, self.count + count))

    def shortcut(self, outlook: Outlook) -> bool:
        """Take leading columns or all of them, where they cost less than the probes ahead."""
        if self._leading is not None:
            most = self._num_columns
            split = self._leading.choose(self._mean(), self.count, outlook, most)
            if split is not None:
                self._leading.take(split)
                return True
        if outlook.wanted < self._num_columns:
            return False
        self._take_pass(None)
        return True


def _at_worst(drawn: Estimate, found: Estimate, count: int) -> Estimate:
    """With the error of the worst case, where so few probes do not show it themselves."""
    if not drawn.value:
        return drawn
    stderr = drawn.value * largest_excess(count) / t_quantile(0.975, count)
    if not found.unknown and found.half_width(0.95) >= stderr * t_quantile(0.975, count):
        return found
    return dataclasses.replace(drawn, variance=stderr**2, dof=float(count))
