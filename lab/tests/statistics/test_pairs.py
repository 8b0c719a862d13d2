"""Pairs counted by sorting, against all pairs one by one."""

import math
import time
import tracemalloc

import numpy as np
import pytest

from spiritlevel_lab.statistics import clustered, granulated_kendall, sign_error, summary
from spiritlevel_lab.statistics.grid import Grid
from spiritlevel_lab.statistics.points import agreement
from spiritlevel_lab.statistics.sign_error import changes_along, errors_of

pytestmark = pytest.mark.sampled(2)  # the others at night

SHAPES = {
    "continuous": lambda rng, n: (rng.standard_normal(n), rng.standard_normal(n)),
    "ties in x": lambda rng, n: (rng.integers(0, 5, n) * 1.0, rng.standard_normal(n)),
    "ties in y": lambda rng, n: (rng.standard_normal(n), rng.integers(0, 3, n) * 1.0),
    "ties in both": lambda rng, n: (rng.integers(0, 9, n) / 3, rng.integers(0, 4, n) / 7),
    "equal points": lambda rng, n: (np.arange(n) // 4 * 1.0, np.arange(n)[::-1] // 4 * 1.0),
    "one outlier": lambda rng, n: (np.eye(1, n)[0], rng.standard_normal(n)),
    "huge": lambda rng, n: (rng.standard_normal(n) * 1e300, rng.standard_normal(n) * 1e-300),
}


def columns(shape: str, n: int, seed: int = 0):
    return SHAPES[shape](np.random.default_rng(seed), n)


def all_pairs(x, y):
    """sign·sign of every pair, one by one."""
    return (np.sign(np.subtract.outer(x / 2, x / 2)) * np.sign(np.subtract.outer(y / 2, y / 2))).T


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 130, 700])
def test_sums_over_pairs_equal_those_one_by_one(shape, n):
    x, y = columns(shape, n)
    assert agreement(x, y) == all_pairs(x, y).sum()


def settings_of(n: int, seeds: int) -> list[dict]:
    rng = np.random.default_rng(2)
    cells = [{"lr": lr, "width": width} for lr in (0.1, 0.01, 0.001) for width in (8, 16)]
    runs = [cell | {"seed": seed} for seed in range(seeds) for cell in cells][:n]
    return [runs[i] for i in rng.permutation(len(runs))]


def pairs_one_by_one(settings, axis: str) -> dict:
    """Every pair of runs that differ in the axis, and perhaps in the seed."""
    pairs: dict = {}
    for i, one in enumerate(settings):
        for j, other in enumerate(settings):
            rest = [k for k in one if k not in (axis, "seed")]
            if one[axis] < other[axis] and all(one[k] == other[k] for k in rest):
                pairs.setdefault((one[axis], other[axis]), []).append((i, j))
    return pairs


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seeds", [1, 4, 70])  # 70 × 70 pairs are not listed
@pytest.mark.parametrize("num_test", [None, 500])
def test_sign_errors_equal_those_of_pairs_one_by_one(seeds, num_test):
    settings = settings_of(6 * seeds, seeds)
    rng = np.random.default_rng(5)
    y = rng.uniform(0, 0.8, len(settings))
    x = np.round(y + rng.normal(0, 0.3, len(settings)), 1)
    found = sign_error(x, y, settings, num_test=num_test, min_effective=1e-9)
    truth = {}
    for axis in ("lr", "width"):
        for (first, second), pairs in pairs_one_by_one(settings, axis).items():
            wrong = weights = 0.0
            for i, j in pairs:
                sure = 1.0
                if num_test is not None:
                    chance = 2 * math.exp(-2 * num_test * ((y[i] - y[j]) / 2) ** 2)
                    sure = max(0.0, max(0.0, 1 - chance) ** 2 - 0.5)
                wrong += sure * (1 - np.sign(x[i] - x[j]) * np.sign(y[i] - y[j])) / 2
                weights += sure
            if weights:
                truth[axis, str(first), str(second)] = (wrong / weights, len(pairs))
    have = {(e.axis, e.first, e.second): (e.error, e.pairs) for e in found.environments}
    assert have.keys() == truth.keys()
    for key, (error, number) in truth.items():
        assert have[key] == (pytest.approx(error, rel=1e-12), number)


@pytest.mark.parametrize("values", [5, 300])  # 300: too many for a table of pairs
def test_a_group_of_many_runs(values):
    rng = np.random.default_rng(7)
    settings = [{"lr": int(lr)} for lr in rng.integers(0, values, 600)]
    x, y = rng.integers(0, 50, 600), rng.standard_normal(600)
    lr = np.array([each["lr"] for each in settings])
    differ = np.not_equal.outer(lr, lr)
    truth = all_pairs(x * 1.0, y)[differ].mean()
    found = granulated_kendall(x, y, settings)
    assert found.axes[0].value == pytest.approx(truth, rel=1e-12)


def test_grids_of_fewer_runs_know_their_axes():
    grid = Grid.read([{"lr": 1, "w": 1}, {"lr": 1, "w": 2}, {"lr": 2, "w": 2}, {"lr": 2}])
    assert grid.axes() == ["lr", "w"]
    part = grid.among(np.array([1, 2]))
    assert part.axes() == ["lr"]
    assert grid.among(np.array([1, 2])) is part
    [change] = changes_along(part, "lr", "change", "seed")
    assert (change.first, change.second) == (1, 2)
    assert errors_of([change], np.array([0.0, 1.0]), np.array([1.0, 0.0]), None)[0][0] == 1.0


# -- many runs -------------------------------------------------------------------------------


def test_large_populations_need_little_memory():
    """A matrix of all pairs of 4,000 runs alone would take 128 MB."""
    x, y = columns("continuous", 4000)
    tracemalloc.start()
    try:
        clustered(x, y, range(4000))
        sign_error(x, y, settings_of(4000, 667)[:4000])
        granulated_kendall(x, y, [{"lr": i} for i in range(4000)])
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 60e6


def test_time_grows_in_proportion_to_the_runs():
    """Eight times the runs: eight times the work, not 64 times."""

    def seconds(n: int) -> float:
        rng = np.random.default_rng(0)
        rows = [
            {"settings": each, "measures": {"a.b": rng.normal(), "a.c": rng.normal()}}
            | {"target": rng.normal()}
            for each in settings_of(n, n // 6)
        ]
        start = time.process_time()
        summary(rows)
        return time.process_time() - start

    seconds(300)
    few, many = (min(seconds(n) for _ in range(2)) for n in (600, 4800))
    assert many < 24 * few  # three times the proportion, for noise and for n·√n
