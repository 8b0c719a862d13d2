"""Numpy and scipy, fetched when a statistic is computed, and the runs a statistic can use."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from spiritlevel.ground.errors import SpiritlevelError, brief, require

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[np.float64]
    Indices: TypeAlias = NDArray[np.intp]
else:
    Array = Indices = (
        Any  # numpy comes with the extra: nothing here may import it before it is needed
    )

Numbers: TypeAlias = Iterable[float | None]  # one a run; None where it is missing
MIN_POINTS = 4  # Fisher's z has variance 1/(n − 3): three points leave nothing to estimate it from
ROUND_OFF = 1e-13  # a spread below this times the largest value is rounding, not variation


def numpy() -> Any:
    """The package, or the pip line that brings it."""
    return require("numpy", what="Judging a study", extra="lab")


def scipy_stats() -> Any:
    """The package, or the pip line that brings it."""
    return require("scipy.stats", what="Judging a study", extra="lab")


def scipy_special() -> Any:
    """The package, or the pip line that brings it."""
    return require("scipy.special", what="Judging a study", extra="lab")


@dataclasses.dataclass(frozen=True)
class Points:
    """Columns of numbers without the runs in which any of them is missing or not finite."""

    columns: tuple[Array, ...]
    kept: Array  # indices of the runs that are left
    n: int
    excluded: int


def finite_points(**columns: Numbers) -> Points:
    """Keep the runs that are finite in every column; None counts as missing.

    >>> points = finite_points(values=[1.0, 2.0, None], target=[0.1, float("inf"), 0.3])
    >>> points.n, points.excluded
    (1, 2)
    """
    np = numpy()
    arrays = [as_floats(column, name) for name, column in columns.items()]
    lengths = {name: len(array) for name, array in zip(columns, arrays, strict=True)}
    if len(set(lengths.values())) > 1:
        raise SpiritlevelError(
            f"The arguments {', '.join(map(repr, lengths))} must have one number a run, in the "
            f"same order. Got {_listing(lengths)}. Pass None for a run in which one is missing."
        )
    finite = np.all([np.isfinite(array) for array in arrays], axis=0)
    indices = np.flatnonzero(finite)
    kept = tuple(array[indices] for array in arrays)
    return Points(kept, indices, len(indices), len(arrays[0]) - len(indices))


def as_floats(column: Numbers, name: str) -> Array:
    """One-dimensional float64; None becomes nan, and so do the strings that JSON keeps it as."""
    try:
        numbers = [math.nan if value is None else float(value) for value in column]
    except (TypeError, ValueError) as error:
        raise SpiritlevelError(
            f"The {name!r} argument must be a sequence of numbers, one a run. Got {brief(column)}. "
            "Pass a list, a one-dimensional array, or None where a number is missing."
        ) from error
    return numpy().array(numbers, dtype=float)


def why_undefined(points: Points, **columns: Array) -> str:
    """Why no correlation of these columns exists, or "" if one does."""
    if points.n < MIN_POINTS:
        plural = "" if points.n == 1 else "s"
        return f"only {points.n} finite point{plural}, at least {MIN_POINTS} are needed"
    for name, column in columns.items():
        if is_constant(column):
            return f"the {name} is the same in all {points.n} runs"
    return ""


def is_constant(column: Array) -> bool:
    """Whether the numbers differ by rounding alone."""
    largest = abs(column).max()
    return bool(column.max() / 2 - column.min() / 2 <= ROUND_OFF * largest)  # halves: no overflow


def scaled(column: Array) -> Array:
    """Shifted and scaled to [−1, 1], where squares neither overflow nor vanish.

    The median, and not the mean, becomes 0: one huge value then leaves the others their digits.
    """
    away = column / 2 - numpy().median(column) / 2
    return away / abs(away).max()


def signs(one: Array, other: Array) -> Array:
    """Sign of one − other by comparison: the difference of huge numbers would overflow."""
    np = numpy()
    return np.greater(one, other).astype(float) - np.less(one, other)


def agreement(x: Array, y: Array) -> float:
    """Concordant less discordant pairs, each counted in both directions; without listing them."""
    np = numpy()
    n = len(x)
    tau = float(scipy_stats().kendalltau(x, y).statistic) if n > 1 else math.nan
    if math.isnan(tau):
        return 0.0
    tied = (float((np.unique(each, return_counts=True)[1] ** 2).sum()) for each in (x, y))
    return float(round(tau * math.sqrt(math.prod(float(n**2) - pairs for pairs in tied))))


def check_confidence(confidence: float) -> None:
    """Raise unless it is a probability strictly between 0 and 1."""
    if not 0.0 < confidence < 1.0:
        raise SpiritlevelError(
            f"The 'confidence' argument must lie between 0 and 1. Got {brief(confidence)}. "
            "Usual: 0.95."
        )


def _listing(lengths: dict[str, int]) -> str:
    return ", ".join(f"{length} of {name}" for name, length in lengths.items())
