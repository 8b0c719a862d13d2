"""Partial correlation: what a measure still says about the gap once confounders are held fixed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Literal

from spiritlevel.ground.need import need, one_of

from .clusters import in_blocks, jackknifed, numbered
from .correlations import (
    Correlation,
    defined,
    p_of_t,
    pearson_of_counts,
    ranks_of_counts,
    undefined,
)
from .intervals import FORMULAS, by_formula
from .points import (
    MIN_POINTS,
    ROUND_OFF,
    Array,
    Numbers,
    check_confidence,
    finite_points,
    is_constant,
    numpy,
    scaled,
    scipy_stats,
    why_undefined,
)

NOTHING_LEFT = 1e-7  # of a unit column, after the confounders are taken out: rounding or as good as


def partial_correlation(
    values: Numbers,
    target: Numbers,
    confounders: Mapping[str, Numbers],
    *,
    kind: Literal["pearson", "spearman"] = "pearson",
    confidence: float = 0.95,
    clusters: Sequence[Hashable] | None = None,
) -> Correlation:
    """Correlation of what linear regression on the confounders leaves of measure and target.

    "spearman" does the same to ranks. p is Student's t with n − 2 − k degrees of freedom for k
    confounders, the interval is Fisher's with n − k in the place of n. A confounder that is
    constant or a combination of those before it takes nothing more out: it is dropped, and
    `reason` names it. With `clusters`, the setting of each run, interval and p count settings and
    not runs: see `clustered`.

    >>> size = [1.0, 2, 3, 4, 5, 6, 7, 8]
    >>> gap, measure = [2.1, 3.9, 6, 8.1, 9.9, 12, 14.1, 15.9], [1, 2.1, 3, 3.9, 5, 6.1, 7, 7.9]
    >>> print(partial_correlation(measure, gap, {"size": size}))
    -0.28 [-0.85, +0.60]
    """
    check_confidence(confidence)
    need("kind", kind, one_of(("pearson", "spearman")), "'pearson' or 'spearman'")
    # under names that cannot meet those of the other columns
    held = {f"confounder {name}": column for name, column in confounders.items()}
    points = finite_points(values=values, target=target, **held)
    name = f"partial {kind}"
    x, y, *others = points.columns
    columns = dict(zip(confounders, others, strict=True))
    reason = why_undefined(points, measure=x, target=y)
    given: tuple[str, ...] = tuple(confounders)
    if not reason:
        value, reason, given, dropped = _coefficient(kind, x, y, columns)
    if reason:
        return undefined(name, reason, points, confidence, given)
    ends = by_formula(kind, value, points.n, confidence=confidence, given=len(given))
    n = points.n
    p = p_of_t(value, n - 2 - len(given))
    method = f"{FORMULAS[kind]}, n − {len(given)}"
    found = defined(name, value, ends, p, points, method, confidence)
    if clusters is None:
        reason = "; ".join([*dropped, *filter(None, [ends.reason])])
        return dataclasses.replace(found, given=given, reason=reason)
    found = dataclasses.replace(found, given=given, reason="; ".join(dropped))
    places, num = numbered([clusters[place] for place in points.kept])
    blocks = in_blocks(places)
    kept = blocks != numpy().arange(int(blocks.max()) + 1)[:, None]
    left_out = partials_of_kept(kind, x, y, columns, kept.astype(float))
    return jackknifed(found, left_out, num, kind)


def _coefficient(
    kind: Literal["pearson", "spearman"], x: Array, y: Array, confounders: Mapping[str, Array]
) -> tuple[float, str, tuple[str, ...], list[str]]:
    """The value, or nan and why; the confounders held fixed, and why others are not."""
    n, others = len(x), list(confounders.values())
    if kind == "spearman":
        x, y, *others = (ranks(column) for column in (x, y, *others))
    basis, given, dropped = _basis(dict(zip(confounders, others, strict=True)), n)
    if n - len(given) < MIN_POINTS:
        need = f"{MIN_POINTS + len(given)} are needed for {len(given)} confounders"
        return math.nan, f"only {n} finite points, {need}", given, dropped
    left_x, left_y = _residual(_unit(x), basis), _residual(_unit(y), basis)
    for what, left in (("measure", left_x), ("target", left_y)):
        if float(left @ left) <= NOTHING_LEFT**2:
            reason = f"the {what} is a linear combination of the confounders {', '.join(given)}"
            return math.nan, reason, given, dropped
    value = float(pearson_of_counts(left_x, left_y, numpy().ones((1, n)))[0])
    return value, "", given, dropped


def partials_of_kept(
    kind: Literal["pearson", "spearman"],
    x: Array,
    y: Array,
    confounders: Mapping[str, Array],
    kept: Array,
) -> Array:
    """The coefficient of the runs that each row keeps (1, else 0); nan where there is none."""
    np = numpy()
    left_x, left_y, *others = (
        _units_of_kept(column if kind == "pearson" else ranks_of_counts(column, kept)[0], kept)
        for column in (x, y, *confounders.values())
    )
    held = np.stack(others, axis=-1) if others else np.zeros((*kept.shape, 0))
    basis, sizes, _ = np.linalg.svd(held, full_matrices=False)
    is_used = sizes > NOTHING_LEFT
    basis = basis * is_used[:, None, :]
    for _ in range(2):  # as in `_residual`
        left_x, left_y = (
            left - np.einsum("nik,njk,nj->ni", basis, basis, left, optimize=True)
            for left in (left_x, left_y)
        )
    both, xx, yy = (
        np.einsum("ni,ni->n", one, other)
        for one, other in ((left_x, left_y), (left_x, left_x), (left_y, left_y))
    )
    enough = kept.sum(axis=1) - is_used.sum(axis=1) >= MIN_POINTS
    is_left = enough & (xx > NOTHING_LEFT**2) & (yy > NOTHING_LEFT**2)
    return np.where(is_left, both / np.sqrt(np.where(is_left, xx * yy, 1.0)), math.nan)


def _units_of_kept(columns: Array, kept: Array) -> Array:
    """Rows centred over what is kept, 0 outside, of length 1; 0 where they are constant."""
    np = numpy()
    largest = abs(columns).max() or 1.0
    away = np.where(kept, columns / largest, 0.0)
    means = away.sum(axis=1, keepdims=True) / kept.sum(axis=1, keepdims=True)
    away = np.where(kept, away - means, 0.0)
    spread = abs(away).max(axis=1, keepdims=True)
    away = away / np.where(spread > ROUND_OFF, spread, math.inf)
    lengths = np.sqrt((away**2).sum(axis=1, keepdims=True))
    return away / np.where(lengths > 0.0, lengths, 1.0)


def ranks(column: Array) -> Array:
    """Middle ranks; what differs by rounding alone stays constant instead of being ordered."""
    return column if is_constant(column) else scipy_stats().rankdata(column)


def _basis(confounders: Mapping[str, Array], n: int) -> tuple[Array, tuple[str, ...], list[str]]:
    """Orthonormal columns that span 1 and the confounders; those used, and why others are not."""
    np = numpy()
    basis = np.full((n, 1), n**-0.5)
    given: list[str] = []
    dropped = []
    for name, column in confounders.items():
        if is_constant(column):
            dropped.append(f"{name} dropped: the same in all runs")
            continue
        left = _residual(_unit(column), basis)
        size = float(np.linalg.norm(left))
        if size <= NOTHING_LEFT:
            dropped.append(f"{name} dropped: a linear combination of {', '.join(given)}")
            continue
        basis = np.column_stack([basis, _residual(left / size, basis)])
        given.append(name)
    return basis, tuple(given), dropped


def _residual(column: Array, basis: Array) -> Array:
    """What is orthogonal to the basis; twice, so that rounding of the first time goes too."""
    for _ in range(2):
        column = column - basis @ (basis.T @ column)
    return column


def _unit(column: Array) -> Array:
    """Centred and of length 1."""
    away = scaled(column)
    away = away - away.mean()
    return away / float(away @ away) ** 0.5
