"""Partial correlation against the inverse of the correlation matrix, and its null distribution."""

import math

import numpy as np
import pytest
from scipy import stats

from spiritlevel import SpiritlevelError
from spiritlevel_lab.statistics import partial_correlation, pearson, spearman

pytestmark = pytest.mark.sampled(2)  # the others at night

NAMES = ["train_loss", "gini", "norm"]


def confounded(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Measure and target follow three correlated confounders, and each other a little."""
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((3, n))
    z[1] += 0.7 * z[0]
    x = z.sum(axis=0) + rng.standard_normal(n)
    y = z[0] - z[2] + 0.5 * x + rng.standard_normal(n)
    return x, y, dict(zip(NAMES, z, strict=True))


def by_inverse(columns: np.ndarray) -> float:
    """−P₀₁/√(P₀₀P₁₁) of the precision matrix P, the other definition."""
    precision = np.linalg.inv(np.corrcoef(columns))
    return float(-precision[0, 1] / math.sqrt(precision[0, 0] * precision[1, 1]))


@pytest.mark.parametrize("kind", ["pearson", "spearman"])
@pytest.mark.parametrize("n", [12, 80])
def test_equals_the_inverse_correlation_matrix(kind, n):
    x, y, z = confounded(n)
    columns = np.vstack([x, y, *z.values()])
    if kind == "spearman":
        columns = stats.rankdata(columns, axis=1)
    found = partial_correlation(x, y, z, kind=kind)
    assert found.value == pytest.approx(by_inverse(columns), rel=1e-10)
    assert (found.kind, found.given, found.n) == (f"partial {kind}", tuple(NAMES), n)


def test_p_and_interval_by_hand():
    x, y, z = confounded(40)
    found = partial_correlation(x, y, z)
    r = by_inverse(np.vstack([x, y, *z.values()]))
    t = abs(r) * math.sqrt((40 - 2 - 3) / (1 - r**2))
    half = stats.norm.ppf(0.975) / math.sqrt(40 - 3 - 3)
    assert found.p == pytest.approx(2 * stats.t.sf(t, 40 - 2 - 3), rel=1e-8)
    ends = (math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half))
    assert (found.low, found.high) == pytest.approx(ends, rel=1e-10)


@pytest.mark.parametrize(("kind", "plain"), [("pearson", pearson), ("spearman", spearman)])
def test_without_confounders_it_is_the_plain_correlation(kind, plain):
    x, y, _ = confounded(30)
    found, truth = partial_correlation(x, y, {}, kind=kind), plain(x, y)
    for name in ("value", "low", "high", "p"):
        assert getattr(found, name) == pytest.approx(getattr(truth, name), rel=1e-9)


def test_p_is_uniform_where_the_confounders_explain_everything():
    rng = np.random.default_rng(0)
    p_values, without, hits = [], [], 0
    for _ in range(1000):
        z = rng.standard_normal((2, 20))
        x, y = (z.sum(axis=0) + rng.standard_normal(20) for _ in range(2))
        found = partial_correlation(x, y, {"a": z[0], "b": z[1]})
        p_values.append(found.p)
        without.append(pearson(x, y).value)
        hits += found.low <= 0.0 <= found.high
    assert stats.kstest(p_values, "uniform").pvalue > 0.001
    assert 0.92 <= hits / 1000 <= 0.98
    assert np.mean(without) > 0.6  # what the confounders alone bring about: ⅔


def test_a_confounded_measure_loses_its_correlation():
    rng = np.random.default_rng(1)
    z = rng.standard_normal(2000)
    x, y = z + 0.3 * rng.standard_normal(2000), z + 0.3 * rng.standard_normal(2000)
    assert pearson(x, y).verdict == "rises with the target"
    assert abs(partial_correlation(x, y, {"z": z}).value) < 4 / math.sqrt(2000)  # four errors


@pytest.mark.parametrize("kind", ["pearson", "spearman"])
def test_a_confounder_that_differs_by_rounding_is_constant(kind):
    x, y, z = confounded(40)
    rounding = {"same": 1e6 + 1e-10 * np.random.default_rng(0).integers(0, 2, 40)}
    found = partial_correlation(x, y, rounding | z, kind=kind)
    assert found.reason == "same dropped: the same in all runs"
    assert found.value == partial_correlation(x, y, z, kind=kind).value


def test_redundant_confounders_are_dropped_by_name():
    x, y, z = confounded(40)
    more = {**z, "sum": 2 * z["gini"] - z["norm"] + 3, "same": np.full(40, 7.0)}
    found, truth = partial_correlation(x, y, more), partial_correlation(x, y, z)
    assert found.value == pytest.approx(truth.value, rel=1e-9)
    assert (found.p, found.low) == pytest.approx((truth.p, truth.low), rel=1e-9)
    assert found.given == tuple(NAMES)
    assert found.reason == (
        "sum dropped: a linear combination of train_loss, gini, norm; "
        "same dropped: the same in all runs"
    )


@pytest.mark.parametrize("which", ["measure", "target"])
def test_nothing_is_left_of_a_combination_of_confounders(which):
    x, y, z = confounded(40)
    combination = z["gini"] - 4 * z["norm"] + 1
    x, y = (combination, y) if which == "measure" else (x, combination)
    found = partial_correlation(x, y, z)
    assert math.isnan(found.value)
    assert found.reason == (
        f"the {which} is a linear combination of the confounders train_loss, gini, norm"
    )


def test_confounders_of_any_size():
    x, y, z = confounded(40)
    scaled = {
        name: column * factor
        for (name, column), factor in zip(z.items(), (1e150, 1, 1e-150), strict=True)
    }
    found = partial_correlation(x * 1e9, y, scaled)
    assert found.value == pytest.approx(partial_correlation(x, y, z).value, rel=1e-9)


def test_runs_without_a_confounder_are_left_out():
    x, y, z = confounded(40)
    holes = {name: list(column) for name, column in z.items()}
    holes["gini"][3], holes["norm"][5] = None, math.inf
    keep = [i for i in range(40) if i not in (3, 5)]
    truth = partial_correlation(x[keep], y[keep], {name: c[keep] for name, c in z.items()})
    found = partial_correlation(x, y, holes)
    assert (found.n, found.excluded) == (38, 2)
    assert found.value == pytest.approx(truth.value, rel=1e-12)


def test_too_few_runs_for_the_confounders():
    x, y, z = confounded(6)
    found = partial_correlation(x, y, z)
    assert found.reason == "only 6 finite points, 7 are needed for 3 confounders"
    assert math.isnan(found.value)


def test_a_constant_measure_says_so():
    _, y, z = confounded(10)
    assert partial_correlation([1.0] * 10, y, z).reason == "the measure is the same in all 10 runs"


@pytest.mark.parametrize("transform", [np.exp, np.cbrt])
def test_ranks_do_not_see_increasing_transforms(transform):
    x, y, z = confounded(40)
    changed = {name: transform(column) for name, column in z.items()}
    one = partial_correlation(x, y, z, kind="spearman")
    other = partial_correlation(transform(x), y, changed, kind="spearman")
    assert other.value == pytest.approx(one.value, rel=1e-12)


def test_a_turned_sign_turns_the_value():
    x, y, z = confounded(40)
    one = partial_correlation(x, y, z)
    assert partial_correlation(-x, y, z).value == pytest.approx(-one.value, rel=1e-12)
    turned = {name: -column for name, column in z.items()}
    assert partial_correlation(x, y, turned).value == pytest.approx(one.value, rel=1e-12)


def test_refusals():
    with pytest.raises(SpiritlevelError, match=r"must be 'pearson' or 'spearman'\. Got 'kendall'"):
        partial_correlation([1, 2, 3, 4], [1, 2, 3, 4], {}, kind="kendall")
    with pytest.raises(SpiritlevelError, match="4 of target, 3 of confounder z"):
        partial_correlation([1, 2, 3, 4], [1, 2, 3, 4], {"z": [1, 2, 3]})
