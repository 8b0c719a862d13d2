"""Granulated Kendall against a line-by-line transcription of Jiang et al. 2020, eq. 4–6."""

import itertools
import math

import numpy as np
import pytest

from spiritlevel import SpiritlevelError
from spiritlevel_lab.statistics import granulated_kendall

GRID = {"lr": [0.1, 0.03, 0.01], "width": [8, 16], "optimizer": ["sgd", "adam"]}


def population(num_seeds: int, seed: int = 0, *, ties: bool = False):
    rng = np.random.default_rng(seed)
    settings = [
        {**dict(zip(GRID, combination, strict=True)), "seed": s}
        for combination in itertools.product(*GRID.values())
        for s in range(num_seeds)
    ]
    gap = rng.standard_normal(len(settings))
    measure = gap + rng.standard_normal(len(settings))
    if ties:
        gap, measure = np.round(gap), np.round(measure)
    return measure, gap, settings


def sign(number: float) -> int:
    return int(number > 0) - int(number < 0)


def naive(measure, gap, settings) -> tuple[float, dict[str, float]]:
    """One run a combination: T_θ runs over the values of one hyperparameter, the others fixed."""
    table = {
        tuple(s[k] for k in GRID): (m, g) for s, m, g in zip(settings, measure, gap, strict=True)
    }
    psi = {}
    for i, axis in enumerate(GRID):
        others = [values for name, values in GRID.items() if name != axis]
        total, groups = 0.0, 0
        for fixed in itertools.product(*others):
            t = [table[(*fixed[:i], value, *fixed[i:])] for value in GRID[axis]]
            tau = 0
            for a in range(len(t)):
                for b in range(len(t)):
                    if a != b:
                        tau += sign(t[a][0] - t[b][0]) * sign(t[a][1] - t[b][1])
            total += tau / (len(t) * (len(t) - 1))
            groups += 1
        psi[axis] = total / groups
    return sum(psi.values()) / len(psi), psi


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_equals_the_transcription(seed, ties):
    measure, gap, settings = population(1, seed, ties=ties)
    found = granulated_kendall(measure, gap, settings)
    value, psi = naive(measure, gap, settings)
    assert found.value == pytest.approx(value, rel=1e-12)
    assert {axis.axis: axis.value for axis in found.axes} == pytest.approx(psi, rel=1e-12)
    assert {axis.axis: axis.groups for axis in found.axes} == {"lr": 4, "width": 6, "optimizer": 6}


def of_seed(column, s: int, num_seeds: int):
    return list(column)[s::num_seeds]


def test_held_seeds_average_the_transcription_over_seeds():
    measure, gap, settings = population(3)
    parts = [naive(*(of_seed(c, s, 3) for c in (measure, gap, settings)))[0] for s in range(3)]
    found = granulated_kendall(measure, gap, settings)
    assert found.value == pytest.approx(np.mean(parts), rel=1e-12)
    assert found.seeds == "hold"


def test_averaged_seeds_are_the_transcription_of_averages():
    measure, gap, settings = population(3)
    averages = [np.mean([of_seed(c, s, 3) for s in range(3)], axis=0) for c in (measure, gap)]
    value, _ = naive(*averages, of_seed(settings, 0, 3))
    found = granulated_kendall(measure, gap, settings, seeds="average")
    assert found.value == pytest.approx(value, rel=1e-12)
    assert found.n == 36


def test_the_seed_as_an_axis_is_one_more_psi():
    measure, gap, settings = population(3)
    held = granulated_kendall(measure, gap, settings)
    found = granulated_kendall(measure, gap, settings, seeds="axis")
    psi = {axis.axis: axis for axis in found.axes}
    assert set(psi) == {"lr", "width", "optimizer", "seed"}
    assert psi["seed"].groups == 12
    for axis in held.axes:
        assert psi[axis.axis].value == pytest.approx(axis.value, rel=1e-12)


def test_extremes():
    measure, gap, settings = population(2)
    assert granulated_kendall(gap, gap, settings).value == 1.0
    assert granulated_kendall(-gap, gap, settings).value == -1.0
    assert granulated_kendall(np.zeros_like(gap), gap, settings).value == 0.0
    one = granulated_kendall(measure, gap, settings).value
    assert granulated_kendall(-measure, gap, settings).value == pytest.approx(-one)
    assert granulated_kendall(np.exp(measure), gap, settings).value == one
    huge = np.sign(measure)
    assert (
        granulated_kendall(huge * 1.5e308, gap, settings).value
        == granulated_kendall(huge, gap, settings).value
    )


def test_it_sees_through_a_measure_that_follows_one_hyperparameter():
    # The gap follows the width; the measure knows the width and nothing else.
    _, noise, settings = population(4, seed=2)
    width = np.array([s["width"] for s in settings], dtype=float)
    found = granulated_kendall(width, width + 0.1 * noise, settings)
    assert {axis.axis: axis.value for axis in found.axes} == {"lr": 0, "width": 1, "optimizer": 0}
    assert found.value == pytest.approx(1 / 3)


def test_failed_runs_shrink_or_empty_their_groups():
    measure, gap, settings = population(1)
    measure = list(measure)
    measure[0] = math.nan  # lr 0.1, width 8, sgd
    found = granulated_kendall(measure, gap, settings)
    assert (found.n, found.excluded) == (11, 1)
    psi = {axis.axis: axis for axis in found.axes}
    assert (psi["lr"].groups, psi["lr"].lone) == (4, 0)  # one of them with two runs
    assert (psi["width"].groups, psi["width"].lone) == (5, 1)


def test_runs_with_equal_settings_are_no_pair():
    settings = [{"lr": 1}, {"lr": 1}, {"lr": 2}]
    found = granulated_kendall([1, 2, 3], [5, 4, 6], settings)
    assert found.value == 1.0  # the pair of the two first, which disagrees, does not count


def test_an_axis_without_pairs_is_reported_and_left_out():
    settings = [{"lr": 1, "w": 1}, {"lr": 2, "w": 1}, {"lr": 3, "w": 2, "momentum": 0.9}]
    found = granulated_kendall([1, 2, 3], [1, 2, 3], settings)
    psi = {axis.axis: axis for axis in found.axes}
    assert found.value == psi["lr"].value == 1.0
    assert math.isnan(psi["w"].value)
    assert (psi["w"].groups, psi["w"].lone) == (0, 3)
    assert (psi["momentum"].groups, psi["momentum"].lone) == (0, 3)


def test_lists_as_hyperparameters():
    settings = [{"widths": [8, 8], "lr": 1}, {"widths": [16], "lr": 1}]
    assert granulated_kendall([1, 2], [1, 2], settings).value == 1.0


def test_no_pairs_at_all():
    found = granulated_kendall([1, 2], [1, 2], [{"lr": 1, "w": 1}, {"lr": 2, "w": 2}])
    assert math.isnan(found.value)
    assert found.reason == "no two runs differ in exactly one hyperparameter"
    assert granulated_kendall([], [], []).reason == found.reason


@pytest.mark.parametrize(
    ("settings", "options", "text"),
    [
        ([{"lr": 1}], {}, "one mapping a run, in the order of 'values'. Got 1 for 2 runs."),
        ([1, 2], {}, "a list with one mapping of hyperparameters a run. Got [1, 2]."),
        ([{"lr": 1}, {"lr": 2}], {"seeds": "mean"}, "'hold', 'average' or 'axis'. Got 'mean'."),
    ],
)
def test_refusals(settings, options, text):
    with pytest.raises(SpiritlevelError) as refusal:
        granulated_kendall([1, 2], [1, 2], settings, **options)
    assert text in str(refusal.value)
