"""Heavy tails are found, and what is shown beside Pearson's r is right."""

import math

import numpy
import pytest
from scipy import stats

from spiritlevel_lab.statistics import summary, tails


def test_kurtosis_is_scipys():
    x, y = numpy.random.default_rng(0).standard_t(4, size=(2, 50))
    found = tails(x, y)
    assert found.kurtosis == pytest.approx((stats.kurtosis(x), stats.kurtosis(y)))


def test_one_run_that_decides_is_found():
    random = numpy.random.default_rng(1)
    x, y = random.lognormal(size=(2, 40))
    x[0] = y[0] = 1e4
    found = tails(x, y)
    assert found.heavy
    assert found.pearson.value > 0.99
    assert found.of_logs.value == pytest.approx(stats.pearsonr(numpy.log(x), numpy.log(y))[0])
    assert found.spearman.value == pytest.approx(stats.spearmanr(x, y)[0])
    rows = [{"settings": {"seed": i}, "measures": {"m": x[i]}, "target": y[i]} for i in range(40)]
    [told] = [note for note in summary(rows).notes() if "Heavy tails" in note]
    for value in (found.pearson, found.of_logs, found.spearman):
        assert f" {value.value:+.2f}" in told
    assert "[" not in told  # the one interval is that which judges


def test_a_normal_sample_has_none():
    random = numpy.random.default_rng(2)
    heavy = [
        tails(*random.multivariate_normal([0, 0], [[1, 0.5], [0.5, 1]], 40).T).heavy
        for _ in range(100)
    ]
    assert sum(heavy) <= 5


def test_only_what_is_positive_has_a_logarithm():
    x, y = numpy.random.default_rng(3).lognormal(size=(2, 30))
    assert tails(x - 10, y).of_logs.value == pytest.approx(stats.pearsonr(x - 10, numpy.log(y))[0])
    assert tails(x - 10, y - 10).of_logs is None


def test_a_curve_is_found_by_ranks():
    x = numpy.linspace(0, 1, 30)
    found = tails(x, numpy.exp(9 * x))
    assert found.spearman.value - found.pearson.value > 0.2
    assert found.heavy


def test_a_constant_measure_has_no_tails():
    found = tails([1.0] * 10, range(10))
    assert not found.heavy
    assert math.isnan(found.kurtosis[0])
    target = [{"settings": {}, "measures": {"m": 1.0}, "target": y} for y in range(10)]
    assert not any("tails" in note for note in summary(target).notes())
