"""What an error in the confounders does to a partial correlation: "held fixed" has a limit.

A confounder that is measured with an error is not held fixed: what its error hides of it stays in
measure and target, and makes them go together. Of true nulls a fifth to two thirds then look clear.
If a share ε of the variance of each confounder between runs is error, its covariances are those
that are seen and its variance is (1 − ε) of what is seen. The partial correlation of that
covariance matrix is what would be left.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Literal

from .clusters import ALMOST
from .judged import Judged
from .partial import ranks
from .points import MIN_POINTS, Array, Numbers, finite_points, is_constant, numpy, scaled

STEPS = 1000  # shares of error that are tried


@dataclasses.dataclass(frozen=True)
class Confounding:
    """How exact the confounders are, and how much error in them would undo the result."""

    errors: Mapping[str, float | None]  # share of their variance between runs; None: not recorded
    undone_at: float | None  # share of error in all of them; None: there is no result to undo

    @property
    def is_undone(self) -> bool:
        """Whether the error that was recorded is enough to undo the result."""
        known = [error for error in self.errors.values() if error is not None]
        return self.undone_at is not None and max(known, default=0.0) >= self.undone_at

    @property
    def sentence(self) -> str:
        """Both, in words; "" where there is no result to undo."""
        if self.undone_at is None:
            return ""
        exact = ", ".join(
            f"{name} (error {'not recorded' if error is None else _percent(error)})"
            for name, error in self.errors.items()
        )
        if self.undone_at >= 1.0:
            return f"held fixed: {exact}; no error in them would undo the result."
        undone = "; their recorded error is enough" if self.is_undone else ""
        return (
            f"held fixed: {exact}; if {_percent(self.undone_at)} of their variance between runs "
            f"were error, the result would be undone{undone}."
        )


def confounding(
    values: Numbers,
    target: Numbers,
    confounders: Mapping[str, Numbers],
    given: Judged,
    *,
    errors: Mapping[str, Numbers] | None = None,
    kind: Literal["pearson", "spearman"] = "spearman",
) -> Confounding:
    """How much error in the confounders the partial correlation `given` stands.

    Args:
        values: of the measure, one a run.
        target: what it should predict.
        confounders: by name, one number a run.
        given: the partial correlation and the interval that judges it.
        errors: by name, the standard error of the confounder in each run, where it is recorded.
        kind: as that of `given`.
    """
    columns = {name: list(column) for name, column in confounders.items()}
    held = {f"confounder {name}": column for name, column in columns.items()}
    x, y, *others = finite_points(values=values, target=target, **held).columns
    others = [column for column in others if len(column) >= MIN_POINTS and not is_constant(column)]
    shares = {name: _share(column, (errors or {}).get(name)) for name, column in columns.items()}
    undone = _undone_at(kind, x, y, others, given) if given.is_clear and others else None
    return Confounding(shares, undone)


def with_error(correlations: Array, shares: Sequence[float]) -> Array:
    """The partial correlation of the first two columns, for each share of error in the others.

    nan where so much error is impossible: nothing would be left of the measure or the target.

    >>> np = numpy()
    >>> seen = np.array([[1.0, 0.4, 0.6], [0.4, 1.0, 0.6], [0.6, 0.6, 1.0]])
    >>> abs(with_error(seen, [0.0, 0.1])).round(4).tolist()  # 0.6 · 0.6 / 0.9 = 0.4
    [0.0625, 0.0]
    """
    np = numpy()
    true = np.repeat(correlations[None], len(shares), axis=0)
    others = np.arange(2, len(correlations))
    true[:, others, others] *= 1.0 - np.array(shares)[:, None]
    is_possible = np.linalg.eigvalsh(true)[:, 0] > 1e-12
    left = np.full(len(shares), math.nan)
    inverse = np.linalg.inv(true[is_possible])
    left[is_possible] = -inverse[:, 0, 1] / np.sqrt(inverse[:, 0, 0] * inverse[:, 1, 1])
    return left


def _undone_at(
    kind: Literal["pearson", "spearman"], x: Array, y: Array, others: list[Array], given: Judged
) -> float:
    """The smallest share of error with which the interval, moved along, reaches 0."""
    np = numpy()
    columns = [
        ranks(column) if kind == "spearman" else scaled(column) for column in (x, y, *others)
    ]
    seen = np.corrcoef(columns)
    if kind == "spearman":  # as of a normal population: means of ranks do not add up
        seen = 2.0 * np.sin(math.pi / 6.0 * seen)
    sign = math.copysign(1.0, given.value)
    near = sign * (given.low if sign > 0 else given.high)
    reach = _fisher(np.array(sign * given.value)) - _fisher(np.array(near))
    shares = np.arange(1, STEPS) / STEPS
    left = sign * with_error(seen, shares)
    undone = np.flatnonzero(np.isnan(left) | (_fisher(left) <= reach))
    return float(shares[undone[0]]) if len(undone) else 1.0


def _share(column: Numbers, errors: Numbers | None) -> float | None:
    """Mean squared error over the variance between runs; None where no error is recorded."""
    if errors is None:
        return None
    values, error = finite_points(column=column, errors=errors).columns
    if len(values) < 2 or is_constant(values):
        return None
    return min(1.0, float((error**2).mean() / values.var(ddof=1)))


def _fisher(values: Array) -> Array:
    np = numpy()
    return np.arctanh(np.clip(values, -ALMOST, ALMOST))


def _percent(share: float) -> str:
    """A share as a percentage, with one digit below 10 %."""
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"
