"""Points stand where the rows say, and what an axis leaves out is counted."""

import dataclasses
import math

import numpy as np
import pytest
import scipy.stats

import spiritlevel as sl
from spiritlevel_lab.pages import figures as studies


def points_of(ax) -> list[tuple[float, float]]:
    return sorted(tuple(point) for line in ax.lines for point in line.get_xydata())


def column(population, name: str) -> list[float]:
    return [row.get(name, math.nan) for row in population.rows]


def test_points_are_the_rows(population):
    ax = studies.measure_against(population, "relative.kappa", view="linear")
    expected = sorted((row["relative.kappa"], row["gap"]) for row in population.rows)
    assert points_of(ax) == expected
    assert ax.get_xscale() == "linear"
    assert (ax.get_xlabel(), ax.get_ylabel().replace("\n", " ")) == (
        "relative.kappa",
        "gap: test loss − training loss",
    )


def test_the_title_has_n_and_the_interval(population):
    text = studies.measure_against(population, "relative.kappa").get_title(loc="left")
    x, y = column(population, "relative.kappa"), column(population, "gap")
    value = scipy.stats.spearmanr(x, y).statistic
    assert f"Spearman ρ {value:+.2f} [" in text
    assert "n = 30" in text


def test_a_log_axis_leaves_out_what_is_not_positive_and_counts_it(population):
    ax = studies.measure_against(population, "curvature.trace", view="log")
    seen = [row for row in population.rows if row.get("curvature.trace", -1) > 0]
    assert points_of(ax) == sorted((row["curvature.trace"], row["gap"]) for row in seen)
    assert len(seen) == 27
    assert ax.get_xscale() == "log"
    expected = "n = 27, 1 without finite numbers, 2 not positive left out"
    assert expected in ax.get_title(loc="left")


def test_every_value_of_a_setting_has_a_colour_a_shape_and_its_own_points(population):
    ax = studies.measure_against(population, "relative.kappa", colour="optimizer")
    marks, lines = ax.lines[::2], ax.lines[1::2]
    assert [line.get_label() for line in marks] == [
        f"{name} (n = 10)" for name in ("sgd", "adam", "adamw")
    ]
    for mark, line, name in zip(marks, lines, ("sgd", "adam", "adamw"), strict=True):
        rows = [row for row in population.rows if row["optimizer"] == name]
        expected = [(row["relative.kappa"], row["gap"]) for row in rows]
        assert [tuple(point) for point in mark.get_xydata()] == expected
        fit = scipy.stats.linregress([math.log(x) for x, _ in expected], [y for _, y in expected])
        for x, y in line.get_xydata():
            assert y == pytest.approx(fit.intercept + fit.slope * math.log(x))
        assert line.get_color() == mark.get_color()
    assert len({line.get_color() for line in marks}) == 3
    assert len({line.get_marker() for line in marks}) == 3


def test_numbers_of_a_setting_are_in_order(population):
    ax = studies.measure_against(population, "relative.kappa", colour="lr")
    values = [line.get_label().split()[0] for line in ax.lines[::2]]
    assert values == ["0.001", "0.003", "0.01", "0.03", "0.1"]


@pytest.mark.parametrize(
    ("measure", "number", "scale"),
    [("relative.kappa", 30, "log"), ("curvature.trace", 29, "linear")],
)
def test_cells_count_every_run_once(population, measure, number, scale):
    ax = studies.measure_against(population, measure, view="density")
    [cells] = ax.collections
    assert cells.get_array().sum() == number
    assert ax.get_xscale() == scale  # logarithmic only where all are positive
    low, high = ax.get_xlim()
    values = [v for v in column(population, measure) if math.isfinite(v)]
    assert low < min(values) < max(values) < high


def test_the_bound_is_drawn_against_the_gap(population):
    ax = studies.bound(population)
    runs, line = ax.lines
    expected = [(row["gap"], row["bound.generalization"]) for row in population.rows]
    assert [tuple(point) for point in runs.get_xydata()] == expected
    assert np.array_equal(line.get_xdata(), line.get_ydata())
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert ax.get_title(loc="left").startswith("the bound holds in 30 of 30 runs")


def test_a_bound_below_the_gap_does_not_hold_and_gaps_below_zero_get_a_linear_axis(population):
    changes = [{"bound.generalization": 1e-3}, {"gap": -0.1}, {"bound.generalization": math.inf}]
    rows = [row | change for row, change in zip(population.rows, changes, strict=False)]
    ax = studies.bound(dataclasses.replace(population, rows=[*rows, *population.rows[3:]]))
    assert (ax.get_xscale(), ax.get_yscale()) == ("linear", "log")
    text = ax.get_title(loc="left")
    assert "holds in 28 of 29 runs" in text
    assert "1 without finite numbers" in text
    assert min(ax.lines[1].get_xdata()) > 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"measure": "relative.kapa"}, r"'measure' must be .* Did you mean 'relative.kappa'"),
        ({"target": "gapp"}, r"'target' must be one of gap, .* Did you mean 'gap'"),
        ({"view": "logg"}, r"'view' must be one of linear, log, density"),
        ({"colour": "optimiser"}, r"'by' must be one of .* Did you mean 'optimizer'"),
    ],
)
def test_unknown_names_are_refused_with_the_likely_meaning(population, arguments, text):
    with pytest.raises(sl.SpiritlevelError, match=text):
        studies.measure_against(population, **({"measure": "relative.kappa"} | arguments))


def test_a_study_without_the_bound_says_what_to_do(population):
    without = dataclasses.replace(population, measures=["relative.kappa"])
    with pytest.raises(sl.SpiritlevelError, match="Add it to the study's measures"):
        studies.bound(without)


def test_nothing_to_show_is_said_and_not_an_error(population):
    rows = [row | {"relative.kappa": -1.0} for row in population.rows]
    ax = studies.measure_against(dataclasses.replace(population, rows=rows), "relative.kappa")
    assert "n = 0, 30 not positive left out" in ax.get_title(loc="left")
    assert "ρ undefined: the measure is the same in all 30 runs" in ax.get_title(loc="left")
