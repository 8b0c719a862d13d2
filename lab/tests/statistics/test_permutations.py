"""The two-way permutation within settings, against loops that share no code with it."""

import itertools
import math

import numpy
import pytest
from scipy import stats

from spiritlevel_lab.statistics import levels
from spiritlevel_lab.statistics.permutations import two_way

SETTINGS, SEEDS = 5, 4


def grid(num_settings=SETTINGS, num_seeds=SEEDS):
    """The runs of each setting, and the seed of each run."""
    groups = [numpy.arange(num_seeds) + num_seeds * i for i in range(num_settings)]
    return groups, [str(seed) for _ in range(num_settings) for seed in range(num_seeds)]


def columns(random, rho=0.0, share=0.0, num_settings=SETTINGS, num_seeds=SEEDS):
    """Two columns; a seed decides a share of both in all settings alike, whatever rho is."""
    pair = random.multivariate_normal([0, 0], [[1, rho], [rho, 1]], (num_settings, num_seeds))
    points = math.sqrt(share) * random.normal(size=(1, num_seeds, 2)) + math.sqrt(1 - share) * pair
    return points[..., 0].ravel(), points[..., 1].ravel()


ROWS, COLUMNS = numpy.divmod(numpy.arange(SETTINGS * SEEDS), SEEDS)
DESIGN = numpy.hstack([numpy.eye(SETTINGS)[ROWS], numpy.eye(SEEDS)[COLUMNS]])
REST = numpy.eye(SETTINGS * SEEDS) - DESIGN @ numpy.linalg.pinv(DESIGN)


def correlation_of_rest(kind, x, y):
    """Of rows of length 1, what is left once settings and seeds are taken out by least squares."""
    x, y = x.reshape(SETTINGS, SEEDS), y.reshape(SETTINGS, SEEDS)
    if kind == "spearman":
        x, y = (stats.rankdata(each, axis=1) for each in (x, y))
    left = [REST @ stats.zscore(each, axis=1).ravel() for each in (x, y)]
    return float(numpy.corrcoef(left)[0, 1])


@pytest.mark.parametrize("kind", ["pearson", "spearman"])
def test_the_value_is_that_of_least_squares(kind):
    x, y = columns(numpy.random.default_rng(0), 0.5, 0.4)
    groups, seeds = grid()
    found = two_way(kind, x, y, groups, seeds)
    assert found.value == pytest.approx(correlation_of_rest(kind, x, y), rel=1e-9)


def test_p_is_that_of_a_loop_over_other_orders():
    """The share of settings and seeds in other orders, drawn anew, that reach as far."""
    random = numpy.random.default_rng(1)
    x, y = columns(random, 0.35, 0.4)
    groups, seeds = grid()
    found = two_way("spearman", x, y, groups, seeds)
    reached = []
    for _ in range(800):
        order = y.reshape(SETTINGS, SEEDS)[random.permutation(SETTINGS)]
        order = order[:, random.permutation(SEEDS)].ravel()
        reached.append(abs(correlation_of_rest("spearman", x, order)) >= abs(found.value) - 1e-9)
    assert 0.02 < found.p < 0.9  # where there is something to compare
    # four standard errors of both draws
    assert found.p == pytest.approx(
        numpy.mean(reached), abs=4 * math.sqrt(found.p * (1 - found.p) * (1 / 800 + 1 / 2000))
    )


def test_p_of_seeds_alone_counts_every_order():
    x, y = columns(numpy.random.default_rng(2), 0.6, 0.4)
    groups, seeds = grid()
    found = two_way("spearman", x, y, groups, seeds)
    of_orders = [
        abs(correlation_of_rest("spearman", x, y.reshape(SETTINGS, SEEDS)[:, order].ravel()))
        for order in itertools.permutations(range(SEEDS))
    ]
    assert found.p_seeds == sum(each >= of_orders[0] - 1e-9 for each in of_orders) / 24


def test_the_interval_leaves_out_0_exactly_where_p_is_small():
    random = numpy.random.default_rng(3)
    groups, seeds = grid()
    clear = 0
    for rho in numpy.linspace(0.0, 0.9, 60):
        x, y = columns(random, rho)
        for confidence in (0.9, 0.95):
            found = two_way("spearman", x, y, groups, seeds, confidence=confidence)
            is_clear = found.low > 0 or found.high < 0
            assert is_clear == (found.p < 1 - confidence - 1e-12)
            assert found.low < found.value < found.high
            clear += is_clear
    assert 20 <= clear <= 100  # both happen


def test_what_a_seed_does_everywhere_is_no_evidence():
    """Seeds decide nearly all, and by chance alike: within settings that proves nothing."""
    random = numpy.random.default_rng(4)
    seed_effect = numpy.tile(numpy.arange(SEEDS), SETTINGS) * 10.0
    x, y = (seed_effect + random.normal(size=SETTINGS * SEEDS) for _ in range(2))
    groups, seeds = grid()
    names = [str(setting) for setting in range(SETTINGS) for _ in range(SEEDS)]
    found = levels(x, y, names, seeds=seeds, kind="pearson").within
    assert found.mean > 0.95
    assert found.p > 0.05
    assert two_way("pearson", x, y, groups, []).p < 0.01  # as if no seed were shared


def test_settings_that_lack_a_run_are_exchanged_among_themselves():
    x, y = columns(numpy.random.default_rng(5), 0.9)
    groups, seeds = grid()
    groups[0] = groups[0][1:]  # the only setting without seed 0
    alone = two_way("spearman", x, y, groups, seeds)
    assert alone.value > 0.5
    order = numpy.random.default_rng(6).permutation(len(x))
    back = numpy.argsort(order)
    moved = two_way(
        *("spearman", x[order], y[order], [back[group] for group in groups]),
        [seeds[place] for place in order],
    )
    assert moved.value == pytest.approx(alone.value)
    assert moved.p == alone.p


def test_two_settings_of_three_seeds_say_nothing():
    x = numpy.array([1.0, 2, 3, 1, 3, 2])
    groups, seeds = grid(2, 3)
    found = two_way("spearman", x, x, groups, seeds)
    assert found.value == pytest.approx(1.0)
    assert found.p > 0.05
    assert found.low <= 0


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_false_positives(share):
    """Of 200 unrelated pairs 5 % are clear: 11 % are four standard errors above."""
    random = numpy.random.default_rng(7)
    groups, seeds = grid(8, 5)
    small = numpy.mean(
        [
            two_way("spearman", *columns(random, 0.0, share, 8, 5), groups, seeds).p < 0.05
            for _ in range(200)
        ]
    )
    assert small <= 0.11
