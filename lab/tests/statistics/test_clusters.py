"""Intervals over settings against a slow loop, and against the truth of simulated settings."""

import dataclasses
import math

import numpy
import pytest
from scipy import stats

from spiritlevel_lab.statistics import clustered, spearman

pytestmark = pytest.mark.sampled(2)  # the others at night

OF_SCIPY = {"pearson": stats.pearsonr, "spearman": stats.spearmanr, "kendall": stats.kendalltau}


def planted(random, num, runs, between, within, share):
    """Two columns: settings differ by `share` of the variance, with a correlation of their own."""
    means, rest = (
        random.multivariate_normal([0, 0], [[1, rho], [rho, 1]], size)
        for rho, size in ((between, num), (within, num * runs))
    )
    settings = numpy.repeat(numpy.arange(num), runs)
    points = math.sqrt(share) * means[settings] + math.sqrt(1 - share) * rest
    return points[:, 0], points[:, 1], settings.tolist()


@pytest.mark.parametrize("kind", OF_SCIPY)
@pytest.mark.parametrize("runs", [1, 5])
def test_equals_a_loop_over_the_settings(kind, runs):
    x, y, settings = planted(numpy.random.default_rng(0), 9, runs, 0.5, -0.2, 0.6)
    x = x.round(1)  # some are equal
    found = clustered(x, y, [f"setting {s}" for s in settings], kind=kind)
    value = OF_SCIPY[kind](x, y)[0]
    z = [
        math.atanh(OF_SCIPY[kind](*zip(*kept, strict=True))[0])
        for left in range(9)
        for kept in [[(a, b) for a, b, s in zip(x, y, settings, strict=True) if s != left]]
    ]
    error = math.sqrt(8 / 9 * sum((each - math.atanh(value)) ** 2 for each in z))
    half = stats.t.ppf(0.975, 8) * error
    ends = [math.tanh(math.atanh(value) + sign * half) for sign in (-1, 1)]
    assert [found.value, found.low, found.high] == pytest.approx([value, *ends])
    assert found.p == pytest.approx(2 * stats.t.sf(abs(math.atanh(value)) / error, 8))
    assert (found.n, found.clusters) == (9 * runs, 9)


@pytest.mark.parametrize(
    ("num", "runs", "between", "within", "share"),
    [(8, 12, 0.5, -0.3, 0.6), (14, 6, 0.3, 0.3, 0.8), (5, 10, 0.6, 0.0, 0.8)],
)
def test_covers_the_truth_where_runs_of_a_setting_are_alike(num, runs, between, within, share):
    """Of 400 intervals of 95 %, between 91 and 99 % hold the truth; those over runs do not."""
    random = numpy.random.default_rng(1)
    rho = share * between + (1 - share) * within
    truth = 6 / math.pi * math.asin(rho / 2)  # Spearman's, of a normal sample
    hits = numpy.zeros(2)
    for _ in range(400):
        x, y, settings = planted(random, num, runs, between, within, share)
        both = clustered(x, y, settings), spearman(x, y)
        hits += [found.low <= truth <= found.high for found in both]
    over_settings, over_runs = hits / 400
    assert 0.91 <= over_settings <= 0.99
    assert over_runs < 0.75


def test_few_settings_have_no_interval():
    x, y, settings = planted(numpy.random.default_rng(0), 3, 8, 0.5, 0.5, 0.5)
    found = clustered(x, y, settings)
    assert found.value == pytest.approx(stats.spearmanr(x, y).statistic)
    assert math.isnan(found.low)
    assert "only 3 settings, at least 4" in found.verdict


def test_a_perfect_correlation_is_as_sure_as_its_settings_are_many():
    found = clustered(range(12), range(12), [place // 3 for place in range(12)])
    four = spearman(range(4), range(4))
    assert (found.value, found.low, found.high) == (1.0, four.low, four.high)
    assert found.p == pytest.approx(2 / 24)
    assert found.verdict == "no clear association at this n"


def test_many_settings_are_left_out_in_blocks():
    """Of 300 settings three go at once: nearly the same error as one by one."""
    x, y, settings = planted(numpy.random.default_rng(0), 300, 2, 0.5, 0.2, 0.6)
    found = clustered(x, y, settings, kind="pearson")
    z = [
        math.atanh(stats.pearsonr(x[kept], y[kept]).statistic)
        for left in range(300)
        for kept in [numpy.array(settings) != left]
    ]
    error = math.sqrt(299 / 300 * sum((each - math.atanh(found.value)) ** 2 for each in z))
    width = math.atanh(found.high) - math.atanh(found.low)
    assert width == pytest.approx(2 * stats.t.ppf(0.975, 99) * error, rel=0.2)
    assert found.clusters == 300


def test_runs_without_a_number_leave_their_setting_smaller():
    x, y, settings = planted(numpy.random.default_rng(0), 6, 4, 0.5, 0.5, 0.5)
    with_gap = [None, *x[1:]]
    smaller = clustered(x[1:], y[1:], settings[1:])
    assert clustered(with_gap, y, settings) == dataclasses.replace(smaller, excluded=1)


def test_a_setting_that_carries_the_correlation_alone():
    x = [0.0] * 12 + [1.0, 2.0, 3.0, 4.0]
    found = clustered(x, range(16), [place // 4 for place in range(16)])
    assert math.isnan(found.low)
    assert "without 1 of the 4 settings there is no correlation" in found.reason
