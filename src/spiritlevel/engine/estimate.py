"""A number with two errors: that of the random probes, and the sampling error of the data."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from ..math.student import t_quantile

MANY_DRAWS = 32  # from which the usual interval is good enough
NEGLIGIBLE = 0.25  # of another sampling error: where probes hide one, it is about theirs or less


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A value and the variance of its error; `dof` says how well that variance is known.

    Whether it is exact follows from how it was computed. Random draws that happen to agree have a
    variance of 0 too, and prove nothing. An infinite variance means that there were too few draws
    to tell.
    """

    value: float
    variance: float = 0.0
    dof: float = math.inf
    data_variance: float | None = None  # of the sampling error; None: unknown, or hidden by probes
    drawn: bool = False  # whether random draws are part of it

    @property
    def exact(self) -> bool:
        """Whether nothing was left to chance."""
        return not self.drawn

    @property
    def unknown(self) -> bool:
        """Whether there were too few draws to tell the error."""
        return math.isinf(self.variance)

    @property
    def stderr(self) -> float:
        """Standard error due to the random probes."""
        return math.sqrt(self.variance)

    @property
    def data_stderr(self) -> float | None:
        """Sampling error: how much other data would change the value."""
        return None if self.data_variance is None else math.sqrt(self.data_variance)

    def half_width(self, confidence: float) -> float:
        """Half the width of the interval that covers the true value with this probability."""
        if self.variance == 0.0:
            return 0.0
        return t_quantile(0.5 + confidence / 2, max(self.dof, 1.0)) * self.stderr

    def errors(self, confidence: float, round_off: float = 0.0) -> dict[str, Any]:
        """`stderr` and `interval` of a Measurement: None if the value is exact or too few draws.

        `round_off` is relative to the value: probes that agree to all digits are not better.
        """
        if self.exact or self.unknown:
            return {"stderr": None, "interval": None}
        least = round_off * abs(self.value)
        margin = max(self.half_width(confidence), 2 * least)
        ends = (self.value - margin, self.value + margin)
        return {"stderr": max(self.stderr, least), "interval": ends}

    def within(self, rtol: float, confidence: float) -> bool:
        """Whether the interval is as narrow as asked, relative to the value.

        A value that is not finite is as precise as it will get.

        >>> Estimate(10.0, variance=0.01).within(0.05, 0.95)
        True
        >>> Estimate(0.0, variance=0.01).within(0.05, 0.95)      # not even the sign is known
        False
        """
        if not math.isfinite(self.value):
            return True
        return self.half_width(confidence) <= rtol * abs(self.value)

    def __add__(self, other: Estimate) -> Estimate:
        """The sum of two parts with independent probes on the same data.

        How the sampling errors are correlated is unknown; they are added as if fully correlated.
        One that probes hide counts as none where even theirs would be negligible.
        """
        variance = self.variance + other.variance
        spread = sum(e.variance**2 / e.dof for e in (self, other) if e.variance)
        first, second = self._data_beside(other), other._data_beside(self)
        data = None if first is None or second is None else (first + second) ** 2
        # Welch and Satterthwaite
        dof = variance**2 / spread if 0.0 < spread < math.inf else math.inf
        return Estimate(
            self.value + other.value, variance, dof, data, drawn=self.drawn or other.drawn
        )

    def _data_beside(self, other: Estimate) -> float | None:
        """The sampling error, as far as it matters beside that of another part."""
        if self.data_stderr is None and self.drawn and other.data_stderr is not None:
            return 0.0 if self.stderr <= NEGLIGIBLE * other.data_stderr else None
        return self.data_stderr

    def with_data_error(self, one: Estimate, other: Estimate, direct: Estimate) -> Estimate:
        """This sum of two parts with the sampling error of a `direct` estimate of it.

        As far as the parts allow that: it lies between the difference and the sum of theirs.
        """
        first, second = one._data_beside(other), other._data_beside(one)
        if first is None or second is None or direct.data_stderr is None:
            return self
        between = min(max(direct.data_stderr, abs(first - second)), first + second)
        return dataclasses.replace(self, data_variance=between**2)

    def scaled(self, factor: float) -> Estimate:
        """The estimate of `factor` times the value."""
        data = None if self.data_variance is None else factor**2 * self.data_variance
        return dataclasses.replace(
            self,
            value=factor * self.value,
            variance=factor**2 * self.variance,
            data_variance=data,
        )


def estimate_from_repetitions(values: list[float], data_variance: float | None = None) -> Estimate:
    """The mean of at least two independent repetitions.

    >>> mean = estimate_from_repetitions([1.0, 2.0, 3.0])
    >>> mean.value, round(mean.stderr, 4), mean.dof
    (2.0, 0.5774, 2.0)
    """
    count = len(values)
    mean = math.fsum(values) / count
    squares = [(value - mean) ** 2 for value in values]
    variance = math.fsum(squares) / (count - 1) / count
    return Estimate(mean, variance, _dof(squares), data_variance, drawn=True)


def estimates_of_columns(rows: list[list[float]]) -> list[Estimate]:
    """One estimate per column, from a row per draw; a single row is exact."""
    if len(rows) == 1:
        return [Estimate(value) for value in rows[0]]
    return [estimate_from_repetitions(list(values)) for values in zip(*rows, strict=True)]


def estimate_of_draws(values: list[float]) -> Estimate:
    """The mean of at least two draws of a skewed number, such as the rise of a loss under noise.

    A mean of few draws that is too small by chance comes with an error that is too small as well.
    In the worst case, squares of one normal number, the usual interval from 2 to 16 draws covers
    the truth in 81 to 92 % of the cases, and the wider one that is taken here in 93 % or more.
    """
    estimate = estimate_from_repetitions(values)
    if len(values) >= MANY_DRAWS or estimate.variance == 0.0:
        return estimate
    if estimate.value == 0.0:
        return dataclasses.replace(estimate, variance=math.inf)
    relative = estimate.half_width(0.95) / abs(estimate.value)
    return dataclasses.replace(estimate, variance=estimate.variance * (1.0 + relative) ** 2)


def _dof(squares: list[float]) -> float:
    """Effective degrees of freedom of a variance: below `count − 1` if the tails are heavy.

    If one direction has nearly all the curvature, a probe is the square of one normal number. The
    usual interval from 16 probes then covers the truth in 88 % of the cases instead of 95 %.
    """
    count, total = len(squares), math.fsum(squares)
    if count < 4 or total == 0.0:
        return float(count - 1)
    plain = count * math.fsum((s / total) ** 2 for s in squares) - 3.0  # total² may underflow
    kurtosis = (count - 1) / ((count - 2) * (count - 3)) * ((count + 1) * plain + 6.0)
    return 2.0 / (2.0 / (count - 1) + max(kurtosis, 0.0) / count)
