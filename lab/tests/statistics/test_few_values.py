"""Axes with two or three values: what is held fixed, and when too little is left to judge by."""

import itertools
import math

import numpy
import pytest
from scipy import stats

from spiritlevel_lab.statistics import partial_correlation
from spiritlevel_lab.statistics.few_values import Design


def design_of(sizes, seeds=2):
    settings = [each for each in itertools.product(*map(range, sizes)) for _ in range(seeds)]
    axes = {"abcdef"[i]: [each[i] for each in settings] for i in range(len(sizes))}
    numbers = [i % seeds for i in range(len(settings))]
    return Design.of([str(each) for each in settings], axes, numbers), axes


@pytest.mark.parametrize(
    ("sizes", "few", "left"),
    [
        ((6, 2, 2), "bc", 21),
        ((4, 3, 2), "bc", 20),
        ((4, 3), "b", 9),
        ((3, 3), "ab", 4),
        ((3, 2), "ab", 2),
        ((2, 2, 2), "abc", 4),
        ((3, 3, 2), "abc", 12),
        ((2, 2, 2, 2), "abcd", 11),
        ((8,), "", 7),
        ((3,), "", 2),  # one axis is the settings themselves, and those are counted
        ((1, 4, 1, 2), "d", 6),
    ],
)
def test_which_axes_are_held_fixed_and_what_is_left(sizes, few, left):
    design, _ = design_of(sizes, 5)
    assert (design.few, design.left) == (tuple(few), left)
    assert design.is_honest == (left >= 5 or not few)
    assert bool(design.reason) != design.is_honest


def test_three_seeds_are_held_fixed_and_need_no_honest_axis():
    design, _ = design_of((8,), 3)
    assert design.few == ("seed",)
    assert design.is_honest
    alone = Design.of(None, {"lr": [1, 2, 3, 4]}, [0, 1, 0, 1])  # nothing is repeated
    assert alone.few == ()


def test_the_reason_names_the_axes():
    design, _ = design_of((3, 3))
    assert design.reason == (
        "any of a and b may decide, none has 4 values to be counted, and with them fixed 4 "
        "differences between settings would be left; 5 are needed"
    )


def test_axes_that_go_together_take_no_more_than_one():
    axes = {"lr": list(range(6)) * 2, "batch": [0, 0, 0, 1, 1, 1] * 2, "name": list("aaabbb") * 2}
    design = Design.of(None, axes | {"wd": [0] * 6 + [1] * 6})
    assert design.few == ("batch", "name", "wd")
    assert design.left == 12 - 1 - 1 - 1  # batch and name are one


@pytest.mark.parametrize("kind", ["pearson", "spearman"])
def test_equals_a_loop_of_least_squares(kind):
    random = numpy.random.default_rng(0)
    design, axes = design_of((5, 2, 2), 4)
    x, y = random.normal(size=(2, 80)) + numpy.array(axes["a"]) * random.normal(size=(2, 1))
    x += 3.0 * numpy.array(axes["b"])
    found = {
        name: partial_correlation(x, y, design.held, kind=kind, clusters=groups)
        for name, groups in {"": design.settings, **design.groups}.items()
    }
    assert list(found) == ["", "a", "b and c", "seed"]
    dummies = numpy.array([numpy.ones(80), axes["b"], axes["c"]]).T

    def partial(kept):
        pair = [stats.rankdata(each[kept]) if kind == "spearman" else each[kept] for each in (x, y)]
        own = dummies[kept]
        left = [each - own @ numpy.linalg.lstsq(own, each, rcond=None)[0] for each in pair]
        return math.atanh(numpy.corrcoef(left)[0, 1])

    group = numpy.array(axes["a"])
    z = partial(group >= 0)
    away = [partial(group != value) - z for value in range(5)]
    half = stats.t.ppf(0.975, 4) * math.sqrt(4 / 5 * sum(each**2 for each in away))
    ends = [math.tanh(z - half), math.tanh(z + half)]
    assert [found["a"].low, found["a"].high] == pytest.approx(ends)
    assert found["a"].clusters == 5
