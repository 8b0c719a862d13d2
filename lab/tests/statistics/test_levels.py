"""Correlations within and between settings, on data whose levels are known to disagree."""

import math

import numpy
import pytest
from scipy import stats

from spiritlevel_lab.statistics import levels


def settings_of(num, runs):
    return [f"rate {place // runs}" for place in range(num * runs)]


def reversal(random, num=6, runs=10):
    """Rises within every setting and falls from setting to setting."""
    steps = numpy.repeat(numpy.arange(num), runs) * 3.0
    inside = random.normal(size=num * runs)
    return steps + inside, -steps + inside + 0.3 * random.normal(size=num * runs)


def test_a_reversal_is_found_and_said():
    x, y = reversal(numpy.random.default_rng(0))
    found = levels(x, y, settings_of(6, 10))
    assert found.within.low > 0.8
    assert found.between.value == pytest.approx(-1.0)
    assert found.pooled.high < -0.5
    assert found.disagrees
    assert found.signs == "differ"
    assert found.sentence.startswith("The signs differ between the levels (Simpson's paradox): ")
    assert "positive in 6 of 6 settings" in found.sentence


@pytest.mark.parametrize("kind", ["pearson", "spearman"])
def test_each_level_equals_scipy(kind):
    random = numpy.random.default_rng(1)
    x, y = reversal(random)
    settings = settings_of(6, 10)
    found = levels(x, y, settings, kind=kind)
    of_scipy = {"pearson": stats.pearsonr, "spearman": stats.spearmanr}[kind]
    parts = [slice(10 * i, 10 * i + 10) for i in range(6)]
    inside = [of_scipy(x[part], y[part])[0] for part in parts]
    assert list(found.within.by_setting.values()) == pytest.approx(inside)
    assert list(found.within.by_setting) == [f"rate {i}" for i in range(6)]
    assert found.within.mean == pytest.approx(numpy.mean(inside))
    assert found.within.value == pytest.approx(numpy.mean(inside))  # without seeds, the same
    assert found.within.p < 0.05
    means = [[column[part].mean() for part in parts] for column in (x, y)]
    assert found.between.value == pytest.approx(of_scipy(*means)[0])
    assert found.pooled.value == found.clustered.value == pytest.approx(of_scipy(x, y)[0])


def test_levels_that_agree_are_no_paradox():
    random = numpy.random.default_rng(2)
    steps = numpy.repeat(numpy.arange(6), 10) * 3.0
    x = steps + random.normal(size=60)
    found = levels(x, x + random.normal(size=60), settings_of(6, 10))
    assert not found.disagrees
    assert found.signs == "agree"
    assert found.sentence.startswith("Within one setting the correlation is +")


def test_signs_of_next_to_nothing_do_not_count():
    """Within: exactly 0 by construction; between and pooled: strong."""
    x = [each + start for start in (0, 5, 10, 15) for each in (0, 1, 0, 1)]
    y = [each + start for start in (0, 7, 14, 21) for each in (0, 0, 1, 1)]
    found = levels(x, y, settings_of(4, 4))
    assert found.within.value == pytest.approx(0.0)
    assert not found.disagrees
    assert found.signs == "near 0"


def test_settings_with_few_runs_say_nothing_within():
    x, y = reversal(numpy.random.default_rng(3), num=20, runs=2)
    found = levels(x, y, settings_of(20, 2))
    assert found.within.n == 0
    assert found.signs is None
    assert (found.within.num_settings, found.sentence) == (20, "")
    assert math.isnan(found.within.value)
    assert str(found.within) == "undefined (no setting has enough runs)"


def test_runs_without_a_number_are_left_out_on_every_level():
    x, y = reversal(numpy.random.default_rng(4))
    with_gaps = [None if place in (0, 10) else value for place, value in enumerate(x)]
    kept = [place for place in range(60) if place not in (0, 10)]
    settings = settings_of(6, 10)
    found = levels(with_gaps, y, settings)
    same = levels(x[kept], y[kept], [settings[place] for place in kept])
    assert found.within == same.within
    assert found.between == same.between
    assert (found.pooled.n, found.pooled.excluded) == (58, 2)


def test_a_perfect_order_of_settings_counts_them_as_points():
    x = [i // 3 + 0.1 * (i % 3) for i in range(15)]
    y = [i // 3 - 0.1 * (i % 3) for i in range(15)]
    between = levels(x, y, [i // 3 for i in range(15)], kind="spearman").between
    assert (between.value, between.n) == (1.0, 5)
    assert between.p == pytest.approx(2 / math.factorial(5))
    assert str(between) == "+1.00 [+0.16, +1.00]"
