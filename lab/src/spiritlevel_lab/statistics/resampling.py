"""Correlations of many parts of the points at once, such as of all without each setting in turn.

A part is a row of counts c: how often each point is in it, or 0 where it is left out. Every sum
over the part is then a sum over the original points with weights c.
"""

from __future__ import annotations

from .points import Array, numpy, scaled, scipy_stats


def ranks_of_counts(column: Array, counts: Array) -> tuple[Array, Array]:
    """Middle ranks of the points in each part, and Σ t³ over groups of t equal values."""
    np = numpy()
    order = np.argsort(column, kind="stable")
    first = np.append(True, column[order[1:]] != column[order[:-1]])
    group = np.empty(len(order), dtype=int)
    group[order] = np.cumsum(first) - 1
    in_group = np.add.reduceat(counts.take(order, axis=1), np.flatnonzero(first), axis=1)
    ranks = np.cumsum(in_group, axis=1)
    ranks -= (in_group - 1.0) / 2
    return ranks.take(group, axis=1), (in_group**3).sum(axis=1)


def pearson_of_counts(x: Array, y: Array, counts: Array) -> Array:
    """Pearson's r of every part; nan where x or y is constant in it."""
    np = numpy()
    n = counts.sum(axis=1, keepdims=True)
    x, y = (
        column - (counts * column).sum(axis=1, keepdims=True) / n
        for column in (scaled(x), scaled(y))
    )
    both, xx, yy = ((counts * p).sum(axis=1) for p in (x * y, x * x, y * y))
    # What is left of a constant column after its mean is rounding: call it constant.
    floor = 1e-26 * n[:, 0] * np.maximum(abs(x), 1.0).max(axis=1) ** 2
    product = np.where((xx > floor) & (yy > floor), xx * yy, 0.0)
    return np.clip(_divide(both, np.sqrt(product)), -1.0, 1.0)


def spearman_of_counts(x: Array, y: Array, counts: Array) -> Array:
    """Spearman's ρ of every part, with middle ranks taken within the part.

    From Σ rank·rank and Σ t³: whole numbers and quarters, so exact.
    """
    np = numpy()
    n = counts.sum(axis=1)
    (ranks_x, cubes_x), (ranks_y, cubes_y) = (ranks_of_counts(each, counts) for each in (x, y))
    both = np.einsum("ij,ij,ij->i", counts, ranks_x, ranks_y) - n * ((n + 1) / 2) ** 2
    product = (n**3 - cubes_x) / 12 * ((n**3 - cubes_y) / 12)
    return np.clip(_divide(both, np.sqrt(product)), -1.0, 1.0)


def kendall_of_counts(x: Array, y: Array, counts: Array) -> Array:
    """Kendall's τ-b of every part."""
    np, tau = numpy(), scipy_stats().kendalltau
    rows = (np.repeat(np.arange(len(x)), row) for row in counts.astype(int))
    return np.array([float(tau(x[row], y[row]).statistic) for row in rows])


OF_COUNTS = {
    "pearson": pearson_of_counts,
    "spearman": spearman_of_counts,
    "kendall": kendall_of_counts,
}


def _divide(numerator: Array, denominator: Array) -> Array:
    np = numpy()
    out = np.full_like(numerator, np.nan)
    return np.divide(numerator, denominator, out=out, where=denominator > 0)
