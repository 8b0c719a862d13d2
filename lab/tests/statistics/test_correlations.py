"""Coefficients and p values against scipy and brute force; what is left out; what is refused."""

import itertools
import math
import sys

import numpy as np
import pytest
from scipy import stats

from spiritlevel import SpiritlevelError
from spiritlevel.ground.errors import MissingExtra
from spiritlevel_lab.statistics import Correlation, clustered, kendall, pearson, spearman

KINDS = [pearson, spearman, kendall]
SCIPY = {pearson: stats.pearsonr, spearman: stats.spearmanr, kendall: stats.kendalltau}
NAN, INF = math.nan, math.inf


def sample(n: int, *, seed: int = 0, ties: bool = False) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(n)
    y = 0.5 * x + rng.standard_normal(n)
    return (np.round(2 * x), np.round(2 * y)) if ties else (x, y)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("n", [9, 30, 200])
def test_value_and_p_equal_scipy(kind, ties, n):
    x, y = sample(n, seed=n, ties=ties)
    found, truth = kind(x, y), SCIPY[kind](x, y)
    assert found.value == pytest.approx(truth.statistic, rel=1e-12)
    assert found.p == pytest.approx(truth.pvalue, rel=1e-9)
    assert (found.kind, found.n, found.excluded) == (kind.kind, n, 0)


@pytest.mark.parametrize("ties", [False, True])
def test_kendall_equals_the_count_of_pairs(ties):
    x, y = sample(25, ties=ties)
    agree = tied_x = tied_y = 0
    pairs = list(itertools.combinations(range(25), 2))
    for i, j in pairs:
        product = (x[i] - x[j]) * (y[i] - y[j])
        agree += int(product > 0) - int(product < 0)
        tied_x += x[i] == x[j]
        tied_y += y[i] == y[j]
    truth = agree / math.sqrt((len(pairs) - tied_x) * (len(pairs) - tied_y))
    assert kendall(x, y).value == pytest.approx(truth, rel=1e-12)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("n", [4, 5, 6])
def test_spearmans_p_of_few_points_counts_all_orders(n, ties):
    x, y = sample(n, seed=n, ties=ties)
    here = abs(stats.spearmanr(x, y).statistic)
    orders = [stats.spearmanr(x, order).statistic for order in itertools.permutations(y)]
    truth = np.mean([abs(other) >= here - 1e-9 for other in orders])
    assert spearman(x, y).p == pytest.approx(truth, rel=1e-12)


def test_kendalls_p_of_few_points_counts_all_orders():
    x, y = sample(6, seed=3)
    here = abs(stats.kendalltau(x, y).statistic)
    orders = [stats.kendalltau(x, order).statistic for order in itertools.permutations(y)]
    assert kendall(x, y).p == pytest.approx(np.mean(np.abs(orders) >= here - 1e-9), rel=1e-12)


def test_table_3_of_paper_000_follows_from_its_r_and_n():
    # The paper prints p = 7.244e-9 for n = 84; the r behind it gives its other digits.
    low, high = 0.5, 0.7
    for _ in range(60):
        r = (low + high) / 2
        t = r * math.sqrt(82 / (1 - r**2))
        low, high = (r, high) if 2 * stats.t.sf(t, 82) > 7.244e-9 else (low, r)
    rng = np.random.default_rng(0)
    x, noise = rng.standard_normal((2, 84))
    x, noise = x - x.mean(), noise - noise.mean()
    noise -= x * (x @ noise) / (x @ x)
    y = r * x / np.linalg.norm(x) + math.sqrt(1 - r**2) * noise / np.linalg.norm(noise)
    found = pearson(x, y)
    assert round(found.value, 4) == 0.5803
    assert round(found.value**2, 4) == 0.3367
    assert (round(found.low, 4), round(found.high, 4)) == (0.4179, 0.7067)
    assert found.p == pytest.approx(7.244e-9, rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_missing_and_infinite_numbers_are_left_out_and_counted(kind):
    x, y = sample(20)
    clean = kind(x[:16], y[:16])
    x, y = list(x), list(y)
    x[16], x[17], y[18], y[19] = None, NAN, INF, "nan"  # JSON keeps nan as a string
    found = kind(x, y)
    assert (found.n, found.excluded) == (16, 4)
    assert (found.value, found.low, found.high) == (clean.value, clean.low, clean.high)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("x", "y", "reason"),
    [
        ([1, 2, 3, NAN], [1, 2, 4, 3], "only 3 finite points, at least 4 are needed"),
        ([NAN, 1], [1, 2], "only 1 finite point, at least 4 are needed"),
        ([], [], "only 0 finite points, at least 4 are needed"),
        ([2.0] * 5, [1, 2, 3, 4, 5], "the measure is the same in all 5 runs"),
        ([0.0] * 5, [1, 2, 3, 4, 5], "the measure is the same in all 5 runs"),
        ([1, 2, 3, 4, 5], [0.1] * 5, "the target is the same in all 5 runs"),
        (
            [1e6, 1e6 + 1e-10, 1e6, 1e6, 1e6],
            [1, 2, 3, 4, 5],
            "the measure is the same in all 5 runs",
        ),
    ],
)
def test_what_has_no_correlation_says_why(kind, x, y, reason):
    found = kind(x, y)
    assert found.reason == reason
    assert all(math.isnan(v) for v in (found.value, found.low, found.high, found.p))
    assert found.verdict == f"undefined: {reason}"
    assert str(found) == f"undefined ({reason})"


@pytest.mark.parametrize("kind", KINDS)
def test_size_of_the_numbers_does_not_matter(kind):
    x, y = sample(30)
    truth = kind(x, y)
    for factor in (1e300, 1e-300):
        found = kind(x * factor, y / factor)
        assert found.value == pytest.approx(truth.value, rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_as_large_as_they_get(kind):
    x = np.array([-1.5e308, 1.0, 1.5e308, -1.4e308, 1.2e308, 0.0])
    found, truth = (kind(x / unit, x) for unit in (1, 1e308))
    assert found.value == truth.value == pytest.approx(1.0)


def test_one_huge_value_leaves_the_others_their_digits():
    x, y = sample(30)
    x, y = np.append(x, 1e9), np.append(y, 1e9)
    assert pearson(x, y).value == pytest.approx(1.0, abs=1e-12)
    without = clustered(x, y, range(31), kind="pearson")
    assert without.low < 0.9  # one of the runs that are left out is the outlier


@pytest.mark.parametrize("kind", [spearman, kendall])
@pytest.mark.parametrize("increasing", [np.exp, np.cbrt, lambda v: 3 * v - 7])
def test_ranks_do_not_see_increasing_transforms(kind, increasing):
    x, y = sample(40, seed=5)
    one, other = kind(x, y), kind(increasing(x), y)
    assert (one.value, one.p) == (other.value, other.p)
    assert (one.low, one.high) == (other.low, other.high)


@pytest.mark.parametrize("kind", KINDS)
def test_a_turned_sign_turns_value_and_interval(kind):
    x, y = sample(40, seed=6)
    one, other = kind(x, y), kind(-x, y)
    assert other.value == pytest.approx(-one.value, rel=1e-12)
    assert other.p == pytest.approx(one.p, rel=1e-9)
    assert (other.low, other.high) == pytest.approx((-one.high, -one.low), rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_measure_and_target_may_change_places(kind):
    x, y = sample(40, seed=7, ties=True)
    assert kind(x, y).value == pytest.approx(kind(y, x).value, rel=1e-12)


def test_verdicts():
    def verdict(value, low, high, p):
        return Correlation("spearman", value, low, high, p, 9, 0, "", 0.95, reason="why").verdict

    assert verdict(0.5, 0.2, 0.7, 0.001) == "rises with the target"
    assert verdict(-0.5, -0.7, -0.2, 0.001) == "falls as the target rises"
    assert verdict(0.5, -0.1, 0.8, 0.2) == "no clear association at this n"
    assert (
        verdict(1.0, 1.0, 1.0, 2 / 24) == "no clear association at this n"
    )  # perfect, but four points
    assert verdict(0.01, -0.02, 0.04, 0.5) == "at most weak"
    assert verdict(0.5, NAN, NAN, 0.001) == "no interval: why"


def test_four_points_in_perfect_order_prove_nothing():
    found = spearman([1, 2, 3, 4], [1, 2, 3, 4])
    assert (found.value, found.p) == (1.0, pytest.approx(2 / 24))
    assert found.verdict == "no clear association at this n"
    assert (found.low, found.high) == (pytest.approx(-0.69, abs=0.005), 1.0)


@pytest.mark.parametrize(("package", "kind"), [("numpy", pearson), ("scipy.stats", kendall)])
def test_a_missing_package_answers_with_its_pip_line(monkeypatch, package, kind):
    monkeypatch.setitem(sys.modules, package, None)  # makes every import of it fail
    with pytest.raises(MissingExtra) as refusal:
        kind([1, 2, 3, 4], [1, 3, 2, 4])
    name = package.split(".")[0]
    line = f"Judging a study needs {name}: pip install 'spiritlevel[lab]'"
    assert str(refusal.value) == line


@pytest.mark.parametrize(
    ("x", "options", "text"),
    [
        ([1, 2, 3], {}, "must have one number a run, in the same order. Got 3 of values, 4 of"),
        (["a", 1, 2, 3], {}, "The 'values' argument must be a sequence of numbers, one a run. Got"),
        (7, {}, "The 'values' argument must be a sequence of numbers, one a run. Got 7"),
        ([1, 2, 3, 4], {"confidence": 95}, "must lie between 0 and 1. Got 95. Usual: 0.95."),
    ],
)
def test_refusals_say_what_to_do(x, options, text):
    with pytest.raises(SpiritlevelError) as refusal:
        pearson(x, [1, 2, 4, 3], **options)
    assert text in str(refusal.value)
