"""Correlations of many bootstrap resamples at once.

A resample is a row of counts c: how often each point is in it. Every sum over the resample is then
a sum over the original points with weights c, so all resamples together are a few matrix products.
Memory for the rank statistics grows as n², which a population of some thousand runs affords.
"""

from __future__ import annotations

from ._arrays import Array, numpy, scaled, signs


def pearson_of_counts(x: Array, y: Array, counts: Array) -> Array:
    """Pearson's r of every resample; nan where x or y is constant in it."""
    return _weighted_pearson(scaled(x), scaled(y), counts)


def spearman_of_counts(x: Array, y: Array, counts: Array) -> Array:
    """Spearman's ρ of every resample, with middle ranks taken within the resample."""
    return _weighted_pearson(_ranks(x, counts), _ranks(y, counts), counts)


def kendall_of_counts(x: Array, y: Array, counts: Array) -> Array:
    """Kendall's τ-b of every resample: cᵀSc / √(cᵀ|Sx|c · cᵀ|Sy|c), S the signs of differences."""
    np = numpy()
    sign_x, sign_y = (signs(v[:, None], v) for v in (x, y))
    together = _quadratic(sign_x * sign_y, counts)
    untied = _quadratic(abs(sign_x), counts) * _quadratic(abs(sign_y), counts)
    return _divide(together, np.sqrt(untied))


OF_COUNTS = {
    "pearson": pearson_of_counts,
    "spearman": spearman_of_counts,
    "kendall": kendall_of_counts,
}


def _ranks(x: Array, counts: Array) -> Array:
    """Of each original point among the points of the resample, ties at the middle."""
    np = numpy()
    # Only ranks matter: equal numbers stay exactly equal and no difference can overflow.
    less = np.less.outer(x, x).astype(float)  # [j, i]: x_j < x_i
    equal = np.equal.outer(x, x).astype(float)
    return counts @ less + (counts @ equal + 1.0) / 2


def _weighted_pearson(x: Array, y: Array, counts: Array) -> Array:
    np = numpy()
    n = counts.sum(axis=1, keepdims=True)
    x = x - (counts * x).sum(axis=1, keepdims=True) / n
    y = y - (counts * y).sum(axis=1, keepdims=True) / n
    both, xx, yy = ((counts * p).sum(axis=1) for p in (x * y, x * x, y * y))
    # What is left of a constant column after its mean is rounding: call it constant.
    floor = 1e-26 * n[:, 0] * np.maximum(abs(x), 1.0).max() ** 2
    product = np.where((xx > floor) & (yy > floor), xx * yy, 0.0)
    return np.clip(_divide(both, np.sqrt(product)), -1.0, 1.0)


def _quadratic(matrix: Array, counts: Array) -> Array:
    return ((counts @ matrix) * counts).sum(axis=1)


def _divide(numerator: Array, denominator: Array) -> Array:
    np = numpy()
    out = np.full_like(numerator, np.nan)
    return np.divide(numerator, denominator, out=out, where=denominator > 0)
