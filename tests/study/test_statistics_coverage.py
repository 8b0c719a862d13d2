"""How often 95 % intervals hold the truth, by simulation; and where they do not."""

import math

import numpy as np
import pytest

from spiritlevel.study.statistics import kendall, pearson, spearman

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


def coverage(kind: str, pairs, value: float, **options) -> float:
    hits = 0
    for i, (x, y) in enumerate(zip(*pairs, strict=True)):
        found = KINDS[kind](x, y, seed=i, **options)
        hits += found.low <= value <= found.high
    return hits / len(pairs[0])


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize(("n", "rho"), [(15, 0.6), (84, 0.0)])
def test_formulas_cover_normal_populations(kind, n, rho):
    pairs = normal_pairs(np.random.default_rng(0), 1000, n, rho)
    assert 0.92 <= coverage(kind, pairs, truth(kind, rho)) <= 0.98


@pytest.mark.parametrize("kind", list(KINDS))
def test_bca_covers_normal_populations(kind):
    pairs = normal_pairs(np.random.default_rng(1), 300, 50, 0.5)
    found = coverage(kind, pairs, truth(kind, 0.5), interval="bca", resamples=600)
    assert 0.92 <= found <= 0.98


def test_heavy_tails_break_pearsons_formula_and_bca_mends_half_of_it():
    # The documentation of `pearson` quotes these numbers.
    pairs = heavy_pairs(np.random.default_rng(2), 1000, 60, 0.6)
    by_formula = coverage("pearson", pairs, 0.6)
    few = tuple(column[:300] for column in pairs)
    by_bca = coverage("pearson", few, 0.6, interval="bca", resamples=600)
    assert by_formula == pytest.approx(0.72, abs=0.05)
    assert by_bca == pytest.approx(0.87, abs=0.05)


def test_heavy_tails_cost_kendalls_formula_little():
    pairs = heavy_pairs(np.random.default_rng(3), 1000, 60, 0.6)
    assert coverage("kendall", pairs, truth("kendall", 0.6)) == pytest.approx(0.92, abs=0.03)
