"""One interval and one p: which judges, when none does, and that both have one answer."""

import dataclasses
import math

import numpy
import pytest

from spiritlevel_lab.statistics import judge, levels, pearson
from spiritlevel_lab.statistics.few_values import Design

NO_FEW = Design.of(["a", "b"], {}, ())
FOUND = dataclasses.replace(
    pearson([1, 2, 3, 4, 5], [1, 3, 2, 5, 4]), value=0.5, low=0.3, high=0.7, p=0.001, clusters=8
)


def wider(low, high, p, clusters=5):
    return dataclasses.replace(FOUND, low=low, high=high, p=p, clusters=clusters)


def test_the_widest_judges_with_its_own_p():
    shared = {"lr": wider(-0.1, 0.8, 0.2), "seed": wider(0.2, 0.75, 0.02)}
    found = judge(FOUND, shared, {}, NO_FEW)
    assert (found.low, found.high, found.p) == (-0.1, 0.8, 0.2)
    assert (found.over, found.count) == ("groups with the same lr", 5)
    assert found.counted == "over 5 groups with the same lr"
    assert found.verdict == "no clear association at this n"
    assert judge(FOUND, {"seed": shared["seed"]}, {}, NO_FEW).over == "seeds"
    assert judge(FOUND, {}, {}, NO_FEW).over == "settings"


def test_it_reaches_over_what_is_held_fixed():
    design = dataclasses.replace(NO_FEW, few=("bn",), held={"bn = 1": [0.0]}, left=9)
    held = {"": dataclasses.replace(FOUND, value=0.2, low=-0.2, high=0.5, p=0.3)}
    found = judge(FOUND, {}, held, design)
    assert (found.value, found.low, found.high, found.p) == (0.5, -0.2, 0.7, 0.3)
    assert found.counted == "over 8 settings, with and without bn held fixed"
    turned = {"": dataclasses.replace(FOUND, value=-0.4, low=-0.6, high=-0.1, p=0.01)}
    assert judge(FOUND, {}, turned, design).p == 1.0  # the sign turns round


def test_no_interval_where_one_of_them_does_not_exist():
    nan = math.nan
    missing = dataclasses.replace(FOUND, low=nan, high=nan, p=nan, reason="only 3 groups by lr")
    fixed = dataclasses.replace(NO_FEW, few=("bn",), left=9)
    for found in (
        judge(FOUND, {"lr": missing}, {}, NO_FEW),
        judge(FOUND, {}, {"": missing}, fixed),
    ):
        assert math.isnan(found.low)
        assert math.isnan(found.p)
        assert found.verdict.startswith("no interval: ")
        assert "only 3 groups by lr" in found.verdict
        assert found.counted == ""


@pytest.mark.parametrize(("low", "high", "p"), [(0.1, 0.8, 0.08), (-0.1, 0.8, 0.02)])
def test_where_interval_and_p_disagree_neither_is_clear(low, high, p):
    found = judge(wider(low, high, p), {}, {}, NO_FEW)
    assert found.low <= 0
    assert found.p >= 0.05 - 1e-12
    assert not found.is_clear


def test_p_is_small_exactly_where_the_interval_leaves_out_0():
    random = numpy.random.default_rng(0)
    clear = 0
    for rho in numpy.linspace(0, 1, 40):
        pair = random.multivariate_normal([0, 0], [[1, rho], [rho, 1]], 36)
        names = [str(i // 3) for i in range(36)]
        axes = {"a": [i // 6 for i in range(36)], "b": [i // 3 % 2 for i in range(36)]}
        found = levels(*pair.T, names, axes=axes, seeds=[i % 3 for i in range(36)]).judged
        assert found.is_clear == (found.p < 0.05 - 1e-12)
        clear += found.is_clear
    assert 5 <= clear <= 35  # both happen


def test_a_design_of_three_by_three_has_none():
    random = numpy.random.default_rng(1)
    axes = {"a": [i // 12 for i in range(36)], "b": [i // 4 % 3 for i in range(36)]}
    x, y = random.normal(size=(2, 36))
    found = levels(x, y, [str(i // 4) for i in range(36)], axes=axes)
    assert math.isnan(found.judged.low)
    assert "any of a and b may decide" in found.judged.reason
    sure = levels(x, x, [str(i // 4) for i in range(36)], axes=axes)
    assert sure.doubt.endswith(f"but none is honest: {sure.judged.reason}.")
