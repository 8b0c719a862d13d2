"""The interval of a difference of two correlations, against a loop and planted populations."""

import math

import numpy
import pytest
from scipy import stats

from spiritlevel_lab.statistics import difference, summary
from spiritlevel_lab.statistics.differences import strongest

NUM, RUNS = 8, 4
NAMES = [str(i // RUNS) for i in range(NUM * RUNS)]
AXES = {"lr": [i // RUNS for i in range(NUM * RUNS)]}


def three(random, rho_one, rho_other, together=0.8):
    """Two measures that are alike, and a target; settings decide half of each."""
    covariance = [[1, together, rho_one], [together, 1, rho_other], [rho_one, rho_other, 1]]
    of_settings = random.multivariate_normal([0] * 3, covariance, NUM)
    of_runs = random.multivariate_normal([0] * 3, covariance, NUM * RUNS)
    return (numpy.repeat(of_settings, RUNS, axis=0) + of_runs).T


@pytest.mark.parametrize("kind", ["pearson", "spearman"])
@pytest.mark.parametrize("sizes", [False, True])
def test_equals_a_loop_over_the_settings(kind, sizes):
    of_scipy = {"pearson": stats.pearsonr, "spearman": stats.spearmanr}[kind]
    one, other, y = three(numpy.random.default_rng(0), -0.8, 0.5, -0.3)
    found = difference(one, other, y, clusters=NAMES, axes=AXES, kind=kind, sizes=sizes)

    def of(kept):
        first, second = (of_scipy(x[kept], y[kept])[0] for x in (one, other))
        return abs(first) - abs(second) if sizes else first - second

    group = numpy.array(AXES["lr"])
    value = of(group >= 0)
    away = [of(group != left) - value for left in range(NUM)]
    error = math.sqrt(7 / 8 * sum(each**2 for each in away))
    half = stats.t.ppf(0.975, 7) * error
    assert found.value == pytest.approx(value)
    assert [found.low, found.high] == pytest.approx([value - half, value + half])
    if found.p != 0.05:  # where interval and p agree
        assert found.p == pytest.approx(2 * stats.t.sf(abs(value) / error, 7))
    assert (found.over, found.count) == ("settings", 8)


def test_is_paired():
    """Two measures with nearly the same error: clear, although their intervals overlap widely."""
    random = numpy.random.default_rng(1)
    y = numpy.repeat(random.normal(size=20), 3)
    error = numpy.repeat(random.normal(size=20), 3)
    one, other = y + error + 0.01 * random.normal(size=60), y + 1.7 * error
    names = [str(i // 3) for i in range(60)]
    axes = {"lr": [i // 3 for i in range(60)]}
    found = difference(one, other, y, clusters=names, axes=axes, kind="pearson")
    assert found.low > 0
    turned = difference(other, one, y, clusters=names, axes=axes, kind="pearson")
    assert (turned.value, turned.low) == pytest.approx((-found.value, -found.high))


@pytest.mark.parametrize("rho_other", [0.5, 0.1])
def test_covers_the_truth(rho_other):
    random = numpy.random.default_rng(2)
    hits = []
    for _ in range(200):
        one, other, y = three(random, 0.5, rho_other)
        found = difference(one, other, y, clusters=NAMES, axes=AXES, kind="pearson")
        hits.append(found.low <= 0.5 - rho_other <= found.high)
    assert numpy.mean(hits) >= 0.9  # of 200: 93 % less two standard errors


def test_the_widest_judges_and_three_by_three_has_none():
    random = numpy.random.default_rng(3)
    axes = {"a": [i // 8 for i in range(48)], "b": [i // 4 % 2 for i in range(48)]}
    names = [str(i // 4) for i in range(48)]
    a = random.normal(size=(3, 6)).repeat(8, axis=1)
    one, other, y = a + 0.2 * random.normal(size=(3, 48))
    found = difference(one, other, y, clusters=names, axes=axes)
    assert found.fixed == ("b",)
    alone = difference(one, other, y, clusters=names, axes={})
    assert found.high - found.low > alone.high - alone.low
    few = {"a": [i // 16 for i in range(48)], "b": [i // 4 % 2 for i in range(48)]}
    assert math.isnan(difference(one, other, y, clusters=names, axes=few).low)
    constant = difference([1.0] * 48, other, y, clusters=names, axes=axes)
    assert constant.verdict == "undefined: the first measure is the same in all 48 runs"


def test_strongest_is_a_claim():
    random = numpy.random.default_rng(4)
    settings = [{"lr": i // 5, "seed": i % 5} for i in range(60)]
    y = numpy.repeat(random.normal(size=12), 5) + 0.3 * random.normal(size=60)
    near, noise = y + 0.3 * random.normal(size=60), random.normal(size=60)
    twin = -y + 0.31 * random.normal(size=60)
    rows = [
        {
            "settings": settings[i],
            "measures": {"noise": noise[i], "near": near[i], "twin": twin[i], "fixed": 1.0},
            "target": y[i],
        }
        for i in range(60)
    ]
    table = summary(rows)
    found = table.strongest
    sizes = {name: abs(row.spearman.value) for name, row in table.measures.items()}
    assert found.name == max(("near", "twin"), key=sizes.__getitem__)
    assert list(found.differences) == [found.second, "noise"]
    assert found.second in ("near", "twin")
    assert found.difference.value == pytest.approx(sizes[found.name] - sizes[found.second])
    assert found.not_exceeded == (found.second,)
    assert "it is not clearly larger than that of 1 of the 2 others" in found.sentence
    assert found.sentence.replace("-", "−") in table.notes()
    of = {"near": near, "noise": noise}
    alone = strongest(of, y, {"near": 0.9, "noise": 0.1}, clusters=None, axes={})
    assert alone.sentence == (
        "near has the largest |ρ|, clearly larger than that of each of the 1 others."
    )
    assert strongest({"near": near}, y, {"near": 0.9}, clusters=None, axes={}) is None
