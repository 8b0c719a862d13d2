"""How often 95 % intervals hold the truth, by simulation; and where they do not."""

import math

import numpy as np
import pytest

from spiritlevel_lab.statistics import clustered, kendall, partial_correlation, pearson, spearman

pytestmark = pytest.mark.sampled(4)  # the others at night

KINDS = {"pearson": pearson, "spearman": spearman, "kendall": kendall}


def normal_pairs(rng, sims: int, n: int, rho: float) -> tuple[np.ndarray, np.ndarray]:
    x, e = rng.standard_normal((2, sims, n))
    return x, rho * x + math.sqrt(1 - rho**2) * e


def heavy_pairs(rng, sims: int, n: int, rho: float) -> tuple[np.ndarray, np.ndarray]:
    """Elliptical t with 3 degrees of freedom: its linear correlation is rho, too."""
    x, y = normal_pairs(rng, sims, n, rho)
    stretch = np.sqrt(3 / rng.chisquare(3, (sims, n)))
    return x * stretch, y * stretch


def truth(kind: str, rho: float) -> float:
    """Of a normal population; τ is the same for every elliptical one."""
    spearman_rho = 6 / math.pi * math.asin(rho / 2)
    return {"pearson": rho, "spearman": spearman_rho, "kendall": 2 / math.pi * math.asin(rho)}[kind]


def heavy_spearman(rho: float, num_pairs: int = 400_000) -> float:
    """ρ of `heavy_pairs`, for which no formula is known, from the ranks of very many pairs."""
    pairs = heavy_pairs(np.random.default_rng(99), 1, num_pairs, rho)
    return float(np.corrcoef([column[0].argsort().argsort() for column in pairs])[0, 1])


def confounded(rng, sims: int, n: int, rho: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Measure and target go together by rho, and each takes up three confounders besides."""
    x, y = normal_pairs(rng, sims, n, rho)
    z = rng.standard_normal((3, sims, n))
    return x + z.sum(axis=0), y + z.sum(axis=0), z


def partial_truth(kind: str, rho: float) -> float:
    """−P₀₁/√(P₀₀P₁₁) of the precision matrix P of the whole population.

    Confounders that explain a linear relation leave something of the ranks: at rho = 0 it is 0.12.
    """
    covariance = np.eye(5)
    covariance[:2, :2] = [[4, rho + 3], [rho + 3, 4]]
    covariance[:2, 2:] = covariance[2:, :2].T[:] = 1
    correlations = covariance / np.sqrt(np.outer(covariance.diagonal(), covariance.diagonal()))
    if kind == "spearman":
        correlations = 6 / math.pi * np.arcsin(correlations / 2)
    precision = np.linalg.inv(correlations)
    return float(-precision[0, 1] / math.sqrt(precision[0, 0] * precision[1, 1]))


def partial_coverage(kind: str, columns, value: float) -> float:
    hits = 0
    for x, y, a, b, c in zip(*columns[:2], *columns[2], strict=True):
        found = partial_correlation(x, y, {"a": a, "b": b, "c": c}, kind=kind)
        hits += found.low <= value <= found.high
    return hits / len(columns[0])


def coverage(kind: str, pairs, value: float, measured=None) -> float:
    hits, measured = 0, measured or KINDS[kind]
    for x, y in zip(*pairs, strict=True):
        found = measured(x, y)
        hits += found.low <= value <= found.high
    return hits / len(pairs[0])


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize(("n", "rho"), [(15, 0.6), (84, 0.0)])
def test_formulas_cover_normal_populations(kind, n, rho):
    pairs = normal_pairs(np.random.default_rng(0), 1000, n, rho)
    assert 0.92 <= coverage(kind, pairs, truth(kind, rho)) <= 0.98


def over_runs(kind: str):
    return lambda x, y: clustered(x, y, range(len(x)), kind=kind)


@pytest.mark.parametrize("kind", ["pearson", "spearman"])
def test_the_jackknife_over_runs_covers_normal_populations(kind):
    pairs = normal_pairs(np.random.default_rng(1), 300, 50, 0.5)
    assert 0.92 <= coverage(kind, pairs, truth(kind, 0.5), over_runs(kind)) <= 0.98


def test_heavy_tails_break_pearsons_formula_and_not_the_jackknife():
    # The documentation of `pearson` quotes these numbers.
    pairs = heavy_pairs(np.random.default_rng(2), 1000, 60, 0.6)
    by_formula = coverage("pearson", pairs, 0.6)
    few = tuple(column[:300] for column in pairs)
    by_jackknife = coverage("pearson", few, 0.6, over_runs("pearson"))
    assert by_formula == pytest.approx(0.72, abs=0.05)
    assert by_jackknife == pytest.approx(0.93, abs=0.04)


def test_heavy_tails_cost_kendalls_formula_little():
    pairs = heavy_pairs(np.random.default_rng(3), 1000, 60, 0.6)
    assert coverage("kendall", pairs, truth("kendall", 0.6)) == pytest.approx(0.92, abs=0.03)


def test_heavy_tails_cost_spearmans_formula_little():
    pairs = heavy_pairs(np.random.default_rng(3), 600, 60, 0.6)
    assert coverage("spearman", pairs, heavy_spearman(0.6)) == pytest.approx(0.92, abs=0.03)


@pytest.mark.parametrize(
    ("kind", "sims", "n", "rho"),
    [("pearson", 1000, 12, 0.6), ("spearman", 400, 50, 0.5), ("spearman", 400, 84, 0.0)],
)
def test_partial_correlations_cover_normal_populations(kind, sims, n, rho):
    columns = confounded(np.random.default_rng(4), sims, n, rho)
    assert 0.92 <= partial_coverage(kind, columns, partial_truth(kind, rho)) <= 0.98
