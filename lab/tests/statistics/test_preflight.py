"""What a study could see, against the rules themselves on the same kind of populations."""

import itertools
import math

import numpy
import pytest

from spiritlevel_lab.population import population_statistics
from spiritlevel_lab.population.settings.definition import Study
from spiritlevel_lab.statistics import levels, preflight
from spiritlevel_lab.statistics.permutations import two_way


def settings_of(sizes, seeds):
    return [
        {**{"abc"[i]: value for i, value in enumerate(values)}, "seed": seed}
        for values in itertools.product(*map(range, sizes))
        for seed in range(seeds)
    ]


def power(settings, names, rho, num, which):
    """The share of populations that the rules call clear; parts as `preflight` describes them."""
    random = numpy.random.default_rng(0)
    axes = {name: [each[name] for each in settings] for name in names}
    setting = [str([each[name] for name in names]) for each in settings]
    seeds = [each["seed"] for each in settings]
    parts = [axes[name] for name in names if len(set(axes[name])) < len(set(setting))]
    parts.append(numpy.unique(setting, return_inverse=True)[1])

    def normal(count):
        return random.multivariate_normal([0, 0], [[1, rho], [rho, 1]], count)

    clear = 0
    for _ in range(num):
        points = math.sqrt(0.5) * normal(len(settings))
        for part in parts:
            points += math.sqrt(0.5 / len(parts)) * normal(max(part) + 1)[part]
        if which == "over":
            clear += levels(*points.T, setting, axes=axes, seeds=seeds).judged.is_clear
        else:
            groups = [numpy.flatnonzero(parts[-1] == place) for place in range(max(parts[-1]) + 1)]
            clear += two_way("spearman", *points.T, groups, list(map(str, seeds))).p < 0.05
    return clear / num


@pytest.mark.nightly
@pytest.mark.parametrize(("sizes", "seeds"), [((6, 2, 2), 4), ((5, 2), 5), ((8,), 5)])
@pytest.mark.parametrize("which", ["over", "within"])
def test_the_rules_have_that_power_there(sizes, seeds, which):
    """0.8 at the correlation that is named, and less at half of it."""
    settings = settings_of(sizes, seeds)
    found = preflight(settings)
    smallest = found.sees_over if which == "over" else found.sees_within
    names = "abc"[: len(sizes)]
    # steps of 0.05 in ρ, 150 populations, and ranks that are not taken again
    assert power(settings, names, smallest, 150, which) >= 0.68
    assert power(settings, names, smallest / 2, 150, which) < 0.6


def test_one_design_by_day():
    settings = settings_of((5, 2), 4)
    found = preflight(settings)
    assert (found.runs, found.settings, found.seeds, found.fixed) == (40, 10, 4, ("b",))
    assert power(settings, "ab", found.sees_within, 30, "within") >= 0.5
    assert power(settings, "ab", found.sees_within / 3, 30, "within") <= 0.5


def test_more_settings_and_more_seeds_see_more():
    few, many, seeds = (
        preflight(settings_of(*design)) for design in (((6, 2), 4), ((12, 2), 4), ((6, 2), 12))
    )
    assert many.sees_over < few.sees_over
    assert seeds.sees_within < few.sees_within


def test_three_by_three_is_told_that_it_has_none():
    found = preflight(settings_of((3, 3), 4))
    assert not found.is_honest
    assert found.sees_over is None
    assert found.sentence.startswith(
        "What 9 settings with 4 seeds could show with power 0.8: over all runs: no honest "
        "interval, since any of a and b may decide"
    )
    assert found.sees_within is not None


def test_designs_that_see_nothing():
    alone = preflight(settings_of((6, 2, 2), 1))
    assert alone.sees_within is None  # a setting has one run
    assert alone.sentence.endswith("within settings: nothing.")
    assert preflight(settings_of((3,), 8)).sees_over is None  # three settings cannot be counted
    assert preflight(settings_of((1,), 1)).sees_over is None


def test_a_study_is_looked_at_by_its_runs():
    study = Study("small", grid={"lr": [0.1, 0.05, 0.02, 0.01, 0.005]}, seeds=4)
    rates = [{"lr": lr, "seed": seed} for lr in range(5) for seed in range(4)]
    assert population_statistics.preflight(study) == preflight(rates)
