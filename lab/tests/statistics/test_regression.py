"""The regression table against scipy's linregress."""

import math

import numpy as np
import pytest
from scipy import stats

from spiritlevel_lab.statistics import kendall, pearson, regression, spearman


def sample(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.lognormal(size=n) * 1e4
    return x, 0.03 + 7e-6 * x + 0.05 * rng.standard_normal(n)


@pytest.mark.parametrize("n", [4, 84])
def test_line_equals_scipys(n):
    x, y = sample(n)
    found, truth = regression(x, y), stats.linregress(x, y)
    assert found.slope == pytest.approx(truth.slope, rel=1e-10)
    assert found.intercept == pytest.approx(truth.intercept, rel=1e-10)
    assert found.slope_stderr == pytest.approx(truth.stderr, rel=1e-10)
    assert found.p_slope == pytest.approx(truth.pvalue, rel=1e-8)
    assert found.r_squared == pytest.approx(truth.rvalue**2, rel=1e-10)
    assert (found.n, found.excluded) == (n, 0)


def test_its_correlations_are_the_functions_of_that_name():
    x, y = sample(30)
    found = regression(x, y, confidence=0.9)
    assert found.pearson == pearson(x, y, confidence=0.9)
    assert found.spearman == spearman(x, y, confidence=0.9)
    assert found.kendall == kendall(x, y, confidence=0.9)


def test_of_the_logarithm_leaves_out_what_has_none():
    x, y = sample(30)
    x[0], x[1], y[2] = 0.0, -1.0, math.inf
    found, truth = regression(x, y, log=True), stats.linregress(np.log(x[3:]), y[3:])
    assert found.slope == pytest.approx(truth.slope, rel=1e-10)
    assert (found.n, found.excluded) == (27, 3)
    assert found.pearson.excluded == 3
    assert str(found).startswith("metric (of log measure)")


def test_numbers_whose_squares_overflow():
    x, y = sample(30)
    found, truth = regression(x * 1e200, y * 1e-200), regression(x, y)
    assert found.slope == pytest.approx(0.0, abs=1e-300)  # 1e-400 is 0 in float64
    assert found.r_squared == pytest.approx(truth.r_squared, rel=1e-10)


def test_a_perfect_line():
    found = regression([1, 2, 3, 4], [3, 5, 7, 9])
    assert (found.slope, found.intercept) == pytest.approx((2, 1))
    assert found.slope_stderr == pytest.approx(0, abs=1e-12)
    assert found.p_slope == pytest.approx(0, abs=1e-6)


def test_the_table_prints_what_the_paper_prints():
    x, y = sample(84)
    found = regression(x, y)
    names = [name for name, _ in found.rows()]
    assert names == [
        "Linear regression slope",
        "Intercept",
        "p (slope)",
        "Slope standard error",
        "R²",
        "Pearson r",
        "95% CI (Pearson r)",
        "p (Pearson)",
        "Spearman ρ",
        "p (Spearman)",
        "Kendall τ",
        "p (Kendall)",
        "n",
        "excluded",
    ]
    values = dict(found.rows())
    assert values["95% CI (Pearson r)"] == f"[{found.pearson.low:.4f}, {found.pearson.high:.4f}]"
    assert values["n"] == "84"


def test_a_constant_measure_says_so():
    found = regression([1.0] * 6, range(6))
    assert math.isnan(found.slope)
    assert str(found).endswith("Undefined: the measure is the same in all 6 runs.")
