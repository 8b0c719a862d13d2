"""Correlations of many bootstrap resamples at once, and with each point left out in turn.

A resample is a row of counts c: how often each point is in it. Every sum over the resample is then
a sum over the original points with weights c. Rows are taken in parts of a few megabytes.
Work grows as n·√n at most for each resample, and memory as n.
"""

from __future__ import annotations

from collections.abc import Callable

from .concordance import Concordance, Ties
from .points import Array, numpy, scaled

AT_ONCE = 1 << 20  # counts that are worked on together
FEW_LEFT = 1e-6  # of the variance: less than that is computed from the remaining points themselves


def pearson_of_counts(x: Array, y: Array, counts: Array) -> Array:
    """Pearson's r of every resample; nan where x or y is constant in it."""
    x, y = scaled(x), scaled(y)
    return _in_parts(lambda part: _weighted_pearson(x, y, part), counts)


def spearman_of_counts(x: Array, y: Array, counts: Array) -> Array:
    """Spearman's ρ of every resample, with middle ranks taken within the resample."""
    np = numpy()
    ties_x, ties_y = Ties.of(x), Ties.of(y)

    def of_part(part: Array) -> Array:
        n = part.sum(axis=1)
        (ranks_x, cubes_x), (ranks_y, cubes_y) = (_ranks(t, part) for t in (ties_x, ties_y))
        products = np.einsum("ij,ij,ij->i", part, ranks_x, ranks_y)
        return _of_ranks(products, n, cubes_x, cubes_y)

    return _in_parts(of_part, counts)


def ranks_of_counts(column: Array, counts: Array) -> Array:
    """Middle ranks within every resample; that of a point which is left out says nothing."""
    return _ranks(Ties.of(column), counts)[0]


def kendall_of_counts(x: Array, y: Array, counts: Array) -> Array:
    """Kendall's τ-b of every resample: S(c) over the geometric mean of what is untied."""
    np = numpy()
    pairs = Concordance(x, y)

    def of_part(part: Array) -> Array:
        all_pairs = part.sum(axis=1) ** 2
        untied = (all_pairs - pairs.x.squares(part)) * (all_pairs - pairs.y.squares(part))
        return _divide(pairs.total(part), np.sqrt(untied))

    return _in_parts(of_part, counts)


def pearson_left_one_out(x: Array, y: Array) -> Array:
    """Pearson's r without each of the points in turn."""
    np = numpy()
    n = len(x)
    away_x, away_y = (column - column.mean() for column in (scaled(x), scaled(y)))
    xx, yy, xy = (
        float((a * b).sum()) - a * b * n / (n - 1)
        for a, b in ((away_x, away_x), (away_y, away_y), (away_x, away_y))
    )
    values = np.clip(_divide(xy, np.sqrt(np.maximum(0.0, xx) * np.maximum(0.0, yy))), -1.0, 1.0)
    # Where a single point carries the variance, the difference above is rounding.
    few = np.flatnonzero(
        (xx <= FEW_LEFT * float((away_x**2).sum())) | (yy <= FEW_LEFT * float((away_y**2).sum()))
    )
    values[few] = pearson_of_counts(x, y, left_out(n, few))
    return values


def spearman_left_one_out(x: Array, y: Array) -> Array:
    """Spearman's ρ without each of the points in turn; the others' ranks close up.

    The rank of j falls by (1 + sign(x_j − x_i))/2 when i leaves, so the sum of products of ranks
    changes by sums over the points above i, and by the concordant pairs of i.
    """
    np = numpy()
    n = len(x)
    pairs = Concordance(x, y)
    ones = np.ones((1, n))
    ranks_x, ranks_y = (_ranks(ties, ones)[0][0] for ties in (pairs.x, pairs.y))
    products = float((ranks_x * ranks_y).sum()) - ranks_x * ranks_y
    products -= _sum_above(pairs.x, ranks_y) + _sum_above(pairs.y, ranks_x)
    signs_x, signs_y = n + 1 - 2 * ranks_x, n + 1 - 2 * ranks_y  # Σ_j sign(x_j − x_i)
    products += (n - 1 + signs_x + signs_y + pairs.of_points()) / 4
    return _of_ranks(products, n - 1, _cubes_without(pairs.x), _cubes_without(pairs.y))


def kendall_left_one_out(x: Array, y: Array) -> Array:
    """Kendall's τ-b without each of the points in turn."""
    np = numpy()
    n = len(x)
    pairs = Concordance(x, y)
    together = pairs.total(np.ones((1, n)))[0] - 2 * pairs.of_points()
    untied = [
        float(n**2 - (ties.sizes.sum())) - 2 * (n - ties.sizes) for ties in (pairs.x, pairs.y)
    ]
    return _divide(together, np.sqrt(untied[0] * untied[1]))


def left_out(n: int, points: Array) -> Array:
    """Counts of 1, and of 0 for the point that the row leaves out."""
    counts = numpy().ones((len(points), n))
    counts[numpy().arange(len(points)), points] = 0.0
    return counts


OF_COUNTS = {
    "pearson": pearson_of_counts,
    "spearman": spearman_of_counts,
    "kendall": kendall_of_counts,
}
LEFT_ONE_OUT = {
    "pearson": pearson_left_one_out,
    "spearman": spearman_left_one_out,
    "kendall": kendall_left_one_out,
}


def _in_parts(of_part: Callable[[Array], Array], counts: Array) -> Array:
    np = numpy()
    rows = max(1, AT_ONCE // max(1, counts.shape[1]))
    starts = range(0, len(counts), rows)
    parts = [of_part(counts[start : start + rows].astype(float)) for start in starts]
    return np.concatenate(parts) if parts else np.empty(0)


def _ranks(ties: Ties, counts: Array) -> tuple[Array, Array]:
    """Ranks of the original points in the resample, and Σ t³ over groups of t equal values."""
    np = numpy()
    in_group = ties.sums(counts)
    ranks = np.cumsum(in_group, axis=1)
    ranks -= (in_group - 1.0) / 2
    cubes = np.einsum("ij,ij,ij->i", in_group, in_group, in_group)
    return ranks.take(ties.group, axis=1), cubes


def _of_ranks(products: Array, n: Array | int, cubes_x: Array, cubes_y: Array) -> Array:
    """Spearman's ρ of n points from Σ rank·rank and Σ t³: whole numbers and quarters, so exact."""
    np = numpy()
    both = products - n * ((n + 1) / 2) ** 2
    product = (n**3 - cubes_x) / 12 * ((n**3 - cubes_y) / 12)
    return np.clip(_divide(both, np.sqrt(product)), -1.0, 1.0)


def _sum_above(ties: Ties, values: Array) -> Array:
    """Σ_{j≠i} values_j · (1 + sign(x_j − x_i))/2: all above i, and half of those equal to it."""
    in_group = ties.sums(values[None])[0]
    above = in_group.sum() - numpy().cumsum(in_group)
    return (above + in_group / 2)[ties.group] - values / 2


def _cubes_without(ties: Ties) -> Array:
    """Σ t³ over groups of t equal values, without each of the points in turn."""
    sizes = ties.sizes.astype(float)
    return float((sizes**2).sum()) - (3 * sizes * (sizes - 1) + 1)


def _weighted_pearson(x: Array, y: Array, counts: Array) -> Array:
    np = numpy()
    n = counts.sum(axis=1, keepdims=True)
    x = x - (counts * x).sum(axis=1, keepdims=True) / n
    y = y - (counts * y).sum(axis=1, keepdims=True) / n
    both, xx, yy = ((counts * p).sum(axis=1) for p in (x * y, x * x, y * y))
    # What is left of a constant column after its mean is rounding: call it constant.
    floor = 1e-26 * n[:, 0] * np.maximum(abs(x), 1.0).max(axis=1) ** 2
    product = np.where((xx > floor) & (yy > floor), xx * yy, 0.0)
    return np.clip(_divide(both, np.sqrt(product)), -1.0, 1.0)


def _divide(numerator: Array, denominator: Array) -> Array:
    np = numpy()
    out = np.full_like(numerator, np.nan)
    return np.divide(numerator, denominator, out=out, where=denominator > 0)
