"""Intervals: formulas by hand, and parts of the points one by one against scipy."""

import math

import numpy as np
import pytest
from scipy import stats

from spiritlevel_lab.statistics import kendall, pearson, spearman
from spiritlevel_lab.statistics.correlations import OF_COUNTS
from spiritlevel_lab.statistics.intervals import by_formula

SCIPY = {"pearson": stats.pearsonr, "spearman": stats.spearmanr, "kendall": stats.kendalltau}


def sample(n: int, *, seed: int = 0, ties: bool = False) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(n)
    y = 0.5 * x + rng.standard_normal(n)
    return (np.round(2 * x), np.round(2 * y)) if ties else (x, y)


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_pearsons_interval_equals_scipys(confidence):
    x, y = sample(25)
    found = pearson(x, y, confidence=confidence)
    truth = stats.pearsonr(x, y).confidence_interval(confidence)
    assert (found.low, found.high) == pytest.approx(tuple(truth), rel=1e-12)
    assert (found.interval_method, found.confidence) == ("Fisher z", confidence)


def test_spearmans_interval_equals_its_formula():
    x, y = sample(25)
    r = stats.spearmanr(x, y).statistic
    half = stats.norm.ppf(0.975) * math.sqrt((1 + r * r / 2) / (25 - 3))
    truth = (math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half))
    found = spearman(x, y)
    assert (found.low, found.high) == pytest.approx(truth, rel=1e-12)


@pytest.mark.parametrize("confidence", [0.8, 0.95])
@pytest.mark.parametrize(("n", "rho"), [(7, 0.9), (12, -0.6), (25, 0.0)])
def test_kendalls_interval_ends_where_the_test_would(n, rho, confidence):
    """Samples from both ends: as many as the test allows come as far as what was seen."""
    x, y = sample(n, seed=n)
    found = kendall(
        x, y if rho == 0 else rho * x + math.sqrt(1 - rho**2) * y, confidence=confidence
    )
    assert -1 < found.low < found.value < found.high < 1
    random = np.random.default_rng(n)
    correction = 2 / (n * (n - 1))
    for end in (found.low, found.high):
        drawn = taus(random, math.sin(math.pi * end / 2), n, samples=20_000)
        errors = (abs(found.value - end) - correction) / drawn.std()
        # 20,000 samples know their deviation to half a percent
        assert errors == pytest.approx(stats.norm.ppf(0.5 + confidence / 2), rel=0.03)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("n", [4, 5, 8, 14])
def test_kendalls_intervals_hold_the_truth_for_few_points(n, rho):
    """Of 4,000 normal samples; Fisher's z with Fieller's variance comes down to 84 %."""
    truth = 2 / math.pi * math.asin(rho)
    drawn = taus(np.random.default_rng(n), rho, n, samples=4000)
    values, counts = np.unique(drawn.round(12), return_counts=True)
    ends = [by_formula("kendall", value, n) for value in values]
    held = [
        count for each, count in zip(ends, counts, strict=True) if each.low <= truth <= each.high
    ]
    assert 0.94 <= sum(held) / 4000 <= 1.0


def taus(random: np.random.Generator, rho: float, n: int, *, samples: int) -> np.ndarray:
    """Kendall's τ of normal samples, by counting pairs."""
    x, y = random.standard_normal((2, samples, n))
    y = rho * x + math.sqrt(1 - rho**2) * y
    first, second = np.triu_indices(n, 1)
    return (np.sign(x[:, first] - x[:, second]) * np.sign(y[:, first] - y[:, second])).mean(axis=1)


def test_confounders_cost_degrees_of_freedom():
    assert by_formula("pearson", 0.4, 30, given=5) == by_formula("pearson", 0.4, 25)


@pytest.mark.parametrize("kind", list(OF_COUNTS))
@pytest.mark.parametrize("ties", [False, True])
def test_every_part_equals_scipy_on_its_points(kind, ties):
    x, y = sample(15, seed=2, ties=ties)
    counts = np.random.default_rng(1).integers(0, 3, (100, 15)).astype(float)
    found = OF_COUNTS[kind](x, y, counts)
    for row, value in zip(counts.astype(int), found, strict=True):
        truth = SCIPY[kind](np.repeat(x, row), np.repeat(y, row)).statistic
        assert value == pytest.approx(truth, rel=1e-10, abs=1e-14)


def test_a_perfect_order_counts_as_half_a_swap_from_it():
    """Five points: 1 2 3 5 4 is the swap, and the interval begins where half of it would."""
    swapped = 1 - 12 / (5 * 24)
    assert spearman(range(5), [1, 2, 3, 5, 4]).value == pytest.approx(swapped)
    half = by_formula("spearman", (1 + swapped) / 2, 5)
    assert half.low < half.high < 1
    for sign in (1, -1):
        found = spearman(range(5), [sign * i for i in range(5)])
        assert found.value == pytest.approx(sign)
        ends = sorted((sign * half.low, sign * 1.0))
        assert [found.low, found.high] == pytest.approx(ends)


@pytest.mark.parametrize("sign", [1, -1])
def test_kendalls_interval_of_a_perfect_order_has_a_width(sign):
    found = kendall(range(5), [sign * i for i in range(5)])
    ends = sorted((sign * found.low, sign * found.high))
    assert ends[1] == 1.0
    assert 0.0 < ends[0] < 0.5  # a τ of 0.5 gives a perfect order in 6 % of samples


@pytest.mark.parametrize("rho", [0.8, 0.9, 0.97])
@pytest.mark.parametrize("count", [4, 5, 6])
def test_few_points_hold_the_truth_although_many_samples_are_in_perfect_order(count, rho):
    """Of 600 normal samples; without a width for perfect order 36 to 93 % would."""
    random = np.random.default_rng(count)
    truth = 6 / math.pi * math.asin(rho / 2)
    samples = random.multivariate_normal([0, 0], [[1, rho], [rho, 1]], (600, count))
    found = [spearman(each[:, 0], each[:, 1]) for each in samples]
    held = [each.low <= truth <= each.high for each in found]
    perfect = [each.value == 1.0 for each in found]
    assert np.mean(held) >= 0.93
    assert np.mean(np.logical_and(held, np.logical_not(perfect))) < 0.95
