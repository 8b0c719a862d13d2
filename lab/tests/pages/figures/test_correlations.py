"""Intervals are those of the statistics, cells those of scipy."""

import dataclasses
import math

import numpy as np
import pytest
import scipy.stats

import spiritlevel as sl
from spiritlevel.pages.figures import COLOURS
from spiritlevel_lab.pages import figures as studies
from spiritlevel_lab.statistics import associations


@pytest.fixture
def outcomes(statistics):
    return {"gap": associations(statistics)}


def test_rows_are_the_statistics_the_strongest_on_top(statistics, outcomes):
    [ax] = studies.correlations(outcomes).axes
    rows = sorted(statistics.measures.values(), key=lambda row: -abs(row.judged.value))
    assert [label.get_text() for label in ax.get_yticklabels()] == [row.name for row in rows]
    lines = [line for line in ax.lines if len(set(line.get_ydata())) == 1]
    points = [line for line in lines if line.get_marker() == "o"]
    intervals = [line for line in lines if line.get_marker() == "None"]
    for row, point, line in zip(rows, points, intervals, strict=True):
        assert list(point.get_xdata()) == [row.judged.value]
        assert list(line.get_xdata()) == [row.judged.low, row.judged.high]
        assert (point.get_markerfacecolor() == COLOURS[0]) == row.is_finding
    assert ax.get_xlabel() == "ρ with the gap of the losses"


def test_both_kinds_of_point_occur(statistics):
    # Meta-test: the check of filled points above would pass on a population of one kind.
    assert {row.is_finding for row in statistics.measures.values()} == {True, False}


def test_outcomes_stand_side_by_side_and_keep_their_rows(outcomes):
    other = {name: outcomes["gap"][name] for name in ("norms.weight", "relative.kappa")}
    first, second = studies.correlations({**outcomes, "test_error": other}).axes
    assert first.get_ylim() == second.get_ylim()
    assert [axis.get_xlabel()[11:] for axis in (first, second)] == [
        "gap of the losses",
        "test error",
    ]
    assert sum(line.get_marker() == "o" for line in second.lines) == 2


def test_what_has_no_correlation_says_so(outcomes):
    found = outcomes["gap"]["norms.weight"]
    undefined = dataclasses.replace(found.judged, value=math.nan, low=math.nan)
    row = {"norms.weight": dataclasses.replace(found, judged=undefined)}
    [ax] = studies.correlations({"gap": {**outcomes["gap"], **row}}).axes
    assert [label.get_text() for label in ax.get_yticklabels()][-1] == "norms.weight"
    assert [text.get_text() for text in ax.texts] == ["undefined"]


def test_cells_are_spearmans_of_the_runs_both_measures_have(population):
    ax = studies.agreement(population, ["relative.kappa", "norms.weight", "curvature.trace"])
    names = ["relative.kappa", "norms.weight", "curvature.trace", "gap"]
    [image] = ax.images
    cells = image.get_array()
    table = np.array([[row.get(name, math.nan) for name in names] for row in population.rows])
    for i in range(4):
        for j in range(4):
            both = np.isfinite(table[:, [i, j]]).all(axis=1)
            expected = scipy.stats.spearmanr(table[both, i], table[both, j]).statistic
            assert cells[i, j] == pytest.approx(expected, abs=1e-12)
    assert "n = 29 to 30 runs" in ax.get_title(loc="left")
    texts = [text.get_text() for text in ax.texts]
    assert texts[1] == f"{cells[0, 1]:.2f}".replace("0.", ".")
    assert image.get_clim() == (-1, 1)


def test_cells_of_a_constant_measure_are_empty(population):
    rows = [row | {"norms.weight": 5.0} for row in population.rows]
    constant = dataclasses.replace(population, rows=rows)
    ax = studies.agreement(constant, ["relative.kappa", "norms.weight"])
    assert np.ma.getmaskarray(ax.images[0].get_array())[1].all()
    assert [text.get_text() for text in ax.texts][3] == "–"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda p, s: studies.correlations({}), "'outcomes' must have at least one measure"),
        (lambda p, s: studies.agreement(p, ["norm.weight"]), "Did you mean 'norms.weight'"),
        (lambda p, s: studies.agreement(p, []), "at least one measure"),
        (lambda p, s: studies.agreement(p, target="loss"), "'target' must be one of"),
    ],
)
def test_unknown_names_are_refused(population, statistics, call, text):
    with pytest.raises(sl.SpiritlevelError, match=text):
        call(population, statistics)
