"""Intervals are those of the statistics, cells those of scipy."""

import dataclasses
import math

import numpy as np
import pytest
import scipy.stats

import spiritlevel as sl
from spiritlevel.pages import figures as plots
from spiritlevel.pages.figures import COLOURS


def drawn(ax, colour: str):
    """Points and intervals of each row from top to bottom, by the colour they are drawn in."""
    lines = [line for line in ax.lines if line.get_color() == colour]
    points = [line for line in lines if line.get_marker() != "None"]
    return points, [line for line in lines if line.get_marker() == "None"]


@pytest.mark.parametrize("kind", ["spearman", "pearson", "kendall"])
def test_rows_are_the_statistics_the_largest_on_top(statistics, kind):
    ax = plots.correlations(statistics, kind, target="gap")
    rows = sorted(statistics.measures.values(), key=lambda row: -getattr(row, kind).value)
    assert [label.get_text() for label in ax.get_yticklabels()] == [row.name for row in rows]
    values, intervals = drawn(ax, COLOURS[0])
    assert len(values) == len(intervals) == len(rows)
    for row, point, line in zip(rows, values, intervals, strict=True):
        found = getattr(row, kind)
        assert list(point.get_xdata()) == [found.value]
        assert list(line.get_xdata()) == [found.low, found.high]
        significant = row.holm[kind] <= 0.05
        assert (point.get_markerfacecolor() == COLOURS[0]) == significant
    assert [text.get_text() for text in ax.texts][:-1] == [str(getattr(r, kind).n) for r in rows]


def test_both_kinds_of_point_occur(statistics):
    # Meta-test: the check of filled points above would pass on a population of one kind.
    significant = {row.holm["spearman"] <= 0.05 for row in statistics.measures.values()}
    assert significant == {True, False}


def test_grey_squares_hold_the_confounders_fixed(statistics):
    ax = plots.correlations(statistics, "spearman")
    squares = [line for line in ax.lines if line.get_marker() == "s"]
    rows = sorted(statistics.measures.values(), key=lambda row: -row.spearman.value)
    partial = [row.partial_spearman.value for row in rows if row.partial_spearman is not None]
    assert [line.get_xdata()[0] for line in squares] == partial
    assert "given norms.weight" in ax.get_title(loc="left")


def test_what_has_no_correlation_says_why(statistics):
    row = statistics.measures["norms.weight"]
    reason = "the measure is the same in all 30 runs"
    undefined = dataclasses.replace(row.spearman, value=math.nan, low=math.nan, reason=reason)
    rows = dict(statistics.measures) | {
        "norms.weight": dataclasses.replace(row, spearman=undefined)
    }
    ax = plots.correlations(dataclasses.replace(statistics, measures=rows))
    assert [label.get_text() for label in ax.get_yticklabels()][-1] == "norms.weight"
    assert reason in [text.get_text() for text in ax.texts]


def test_cells_are_spearmans_of_the_runs_both_measures_have(population):
    ax = plots.agreement(population, ["relative.kappa", "norms.weight", "curvature.trace"])
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
    ax = plots.agreement(constant, ["relative.kappa", "norms.weight"])
    assert np.ma.getmaskarray(ax.images[0].get_array())[1].all()
    assert [text.get_text() for text in ax.texts][3] == "–"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda p, s: plots.correlations(s, "spearmann"), "'kind' must be one of spearman"),
        (lambda p, s: plots.agreement(p, ["norm.weight"]), "Did you mean 'norms.weight'"),
        (lambda p, s: plots.agreement(p, []), "at least one measure"),
        (lambda p, s: plots.agreement(p, target="loss"), "'target' must be one of"),
    ],
)
def test_unknown_names_are_refused(population, statistics, call, text):
    with pytest.raises(sl.SpiritlevelError, match=text):
        call(population, statistics)
