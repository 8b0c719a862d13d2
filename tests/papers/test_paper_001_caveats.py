"""Paper 001: what stands between a number and the claim, and is said or shown beside it."""

import math

import numpy
import pytest
from scipy import stats

from papers.known_rows import judged, rows_of, students
from spiritlevel.content import Series
from spiritlevel.papers import find
from spiritlevel.papers.judging.judged import judged as judged_by_trained
from spiritlevel.papers.recipes.figures import log_figure
from spiritlevel.papers.recipes.held_fixed import ConfoundedTrend

LARGEST, TRACE, KAPPA = "curvature.lambda_max", "curvature.trace", "relative.kappa"
GINI, FREQUENCY = "softmax.gini", "activity.frequency"
NOISE, SHIFT, MASK = "interventions.input_noise", "interventions.bias_shift", "interventions.mask"
VARIED = ConfoundedTrend(*("v", "the knob", "f", "the loss", ["m"]), explained=("m", "the trace"))


def left_over(varied, measured, fixed):
    """Ranks less what a straight line through those of the fixed number gives, correlated."""
    ranks = [stats.rankdata(values) for values in (varied, measured)]
    line = numpy.column_stack([numpy.ones(len(fixed)), stats.rankdata(fixed)])
    left = [r - line @ numpy.linalg.lstsq(line, r, rcond=None)[0] for r in ranks]
    return stats.pearsonr(*left).statistic


def runs(measured, *, n=40):
    """`measured` makes a number of the knob, the loss and chance; the loss follows the knob."""
    random = numpy.random.default_rng(0)
    knob = numpy.arange(n) % 5
    loss = knob + random.normal(size=n)
    values = measured(knob, loss, random.normal(size=n))
    return [dict(zip("vfm", cells, strict=True)) for cells in zip(knob, loss, values, strict=True)]


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        (lambda knob, loss, chance: loss + 0.5 * chance, "no clear trend is left"),
        (lambda knob, loss, chance: knob + 0.5 * chance, "a trend in the same direction is left"),
        (lambda knob, loss, chance: 3 * loss - knob + 0.1 * chance, "the trend is reversed"),
        (lambda knob, loss, chance: chance, "no clear trend, as before"),
        (lambda knob, loss, chance: 2 * loss - 2 * knob, "a trend that was not clear before"),
        (lambda knob, loss, chance: loss, "cannot tell what is left"),
    ],
)
def test_what_is_left_of_a_trend(measured, said):
    rows = runs(measured)
    [why] = VARIED.why(rows)
    assert why.endswith(f"{said}.")
    knob, loss, values = ([row[key] for row in rows] for key in "vfm")
    for one, other in ((knob, loss), (loss, values), (knob, values)):
        assert f"{stats.spearmanr(one, other).statistic:+.2f} [" in why
    [[name, n, with_knob, with_loss, left]] = VARIED.section(rows, {}).rows
    assert (name, n) == ("m", 40)
    assert with_knob.value == pytest.approx(stats.spearmanr(knob, values).statistic)
    assert with_loss.value == pytest.approx(stats.spearmanr(loss, values).statistic)
    if "cannot tell" in said:
        assert math.isnan(left.value)
    else:
        assert left.value == pytest.approx(left_over(knob, values, loss))
        assert f"is {left.value:+.2f} [" in why


def learning(name, varied, settings, fixed, names):
    """The numbers follow the fixed one, which follows what is varied."""
    random = numpy.random.default_rng(1)
    return rows_of(
        name,
        [{varied: setting} for setting in settings],
        lambda axis, seed: (
            {fixed: 1 - 0.1 * settings.index(axis[varied]) + 0.2 * random.random()}
            | {each: random.random() for each in names}
        ),
    )


@pytest.mark.parametrize(
    ("name", "varied", "settings", "fixed", "names"),
    [
        ("001-fig-2", SHIFT, [-1.0, 0.0, 1.0], "train_loss", [FREQUENCY, TRACE]),
        (
            "001-fig-9",
            NOISE,
            [0.0, 0.1, 0.5],
            "train_accuracy",
            [TRACE, "sensitivity.jacobian", GINI],
        ),
        ("001-table-5", MASK, [0.0, 0.7], "train_accuracy", ["test_accuracy", TRACE, LARGEST]),
    ],
)
def test_what_was_learned_is_held_fixed(name, varied, settings, fixed, names):
    rows = learning(name, varied, settings, fixed, names)
    section = find(name).analyse(rows).more[-1]
    assert [cells[0] for cells in section.rows] == names
    assert "not judged" in section.caption
    for measure, *_, left in section.rows:
        columns = ([row[key] for row in rows] for key in (varied, measure, fixed))
        assert left.value == pytest.approx(left_over(*columns))


def test_training_accuracy_is_held_fixed_for_trained_networks_alone():
    steps = {"R = 1": 1, "R = 5": 5, "R = 10": 10, "R = 5, one epoch": 5, "R = 10, one epoch": 10}
    names = [TRACE, GINI]
    rows = learning("001-table-2", "variant", list(steps), "train_accuracy", names)
    for row in rows:
        row["outcome"] = "epochs" if row["variant"] == "R = 10" and row["seed"] else row["outcome"]
    outcome = find("001-table-2").analyse(rows)
    (section,) = outcome.more
    trained = [row for row in rows if "epoch" not in row["variant"]]
    for measure, n, *_, left in section.rows:
        columns = [[row[key] for row in trained] for key in (measure, "train_accuracy")]
        assert n == len(trained)
        assert left.value == pytest.approx(
            left_over([steps[row["variant"]] for row in trained], *columns)
        )
    assert "with R = 10 (1 of 4 reached it)" in section.caption
    reached = {cells[0]: cells[2] for cells in outcome.table.rows}
    assert reached == {name: None if "one epoch" in name else 4 for name in steps} | {"R = 10": 1}


@pytest.mark.parametrize(("late", "agrees"), [(0, "yes"), (1, "untrained"), (3, "untrained")])
def test_augmentation_at_another_training_accuracy_decides_nothing(late, agrees):
    ways = {"test_accuracy": 1, LARGEST: -1, "activity.activation_norm": 1, "norms.weight": 1}
    rows = rows_of(
        "001-fig-3",
        [{"variant": "plain"}, {"variant": "augmented"}],
        lambda axis, seed: (
            {
                key: 100 + seed + way * (1 + 0.01 * seed) * (axis["variant"] == "augmented")
                for key, way in (ways | {FREQUENCY: -1}).items()
            }
            | {"train_accuracy": 0.8 if axis["variant"] == "plain" else 0.5}
        ),
        seeds=3,
    )
    for row in rows:
        if row["variant"] == "augmented" and row["seed"] < late:
            row["outcome"] = "epochs"
    outcome = judged_by_trained(find("001-fig-3"), rows)
    judgement = "not judged" if late else "held"
    assert [finding.result for finding in outcome.findings] == [judgement] * 5
    assert outcome.agrees == agrees
    assert [cells[:3] for cells in outcome.table.rows] == [
        ["plain", 3, 3],
        ["augmented", 3, 3 - late],
    ]
    assert (f"{3 - late} of 3 (variant augmented)" in outcome.conclusion) == bool(late)


def scaled(traces):
    """VGG-small with all weights × 10 has these traces; as trained 100, and 0.5 for 1 − ‖p‖²."""
    rows = []
    for seed, trace in enumerate(traces):
        row = dict.fromkeys(find("001-fig-1").columns, 1.0) | {"model": "vgg_small", "seed": seed}
        row |= {f"{name}/plain": 100.0 for name in (LARGEST, TRACE, KAPPA)}
        row |= {f"{TRACE}/all": trace, f"{KAPPA}/all": 2 * trace, f"{GINI}/all": trace / 1e3}
        rows.append(row | {f"{LARGEST}/all": 7000.0 + seed})
    return rows


def test_one_network_is_not_the_mean_of_all():
    outcome = find("001-fig-1").analyse(scaled([1e-40, 3e-20, 5e7]))
    plain, times_ten, _ = outcome.table.rows
    trace = outcome.table.columns.index(TRACE)
    assert plain[trace].value == pytest.approx(100.0)
    assert times_ten[trace] == "3e-20 (1e-40 to 5e+07)"
    assert "median" in times_ten[1]


def test_a_trace_that_vanished_is_explained():
    why = find("001-fig-1").analyse(scaled([1e-40, 3e-20, 5e7])).why
    assert "in 2 of 3 networks vgg_small" in why
    assert "at most 3e-23, while the largest eigenvalue is 7000 to 7000" in why
    assert find("001-fig-1").analyse(scaled([10.0, 5e7])).why == ""


def test_range_of_runs_is_not_that_of_means():
    rows = rows_of(
        "001-fig-2",
        [{SHIFT: shift} for shift in (-1.0, 0.0, 1.0)],
        lambda axis, seed: {"test_accuracy": 0.5 + 0.1 * (-1) ** seed * (axis[SHIFT] == 1.0)},
        seeds=2,
    )
    assert "test accuracy lies between 0.401 and 0.6, training" in (
        find("001-fig-2").analyse(rows).conclusion
    )


@pytest.mark.parametrize(
    ("drop", "said"),
    [({"weak": 0.4, "strong": 0.7}, "weak and strong"), ({"strong": 0.7}, "strong"), ({}, "")],
)
def test_training_accuracy_after_the_noise(drop, said):
    rows = rows_of(
        "001-table-4",
        [{}],
        lambda axis, seed: {
            f"task.train_accuracy/{stage}": 0.9002 - drop.get(stage, 0.0)
            for stage in ("standard", "weak", "strong")
        },
    )
    conclusion = find("001-table-4").analyse(rows).conclusion
    value, low, high = students([0.9002, 0.9012, 0.9012, 0.9002])
    interval = f"[{low.expected:.3g}, {high.expected:.3g}]"
    assert f"{value.expected:.3g} {interval} in the standard networks" in conclusion
    last = f"after {said} noise it is not the same"
    assert (last if said else "the same within 0.02.") in conclusion


def test_missing_seeds_are_named():
    names = ("plain", "SAM", "noise", "noise, wide")
    rows = rows_of(
        "001-a6", [{"variant": name} for name in names], lambda axis, seed: {TRACE: 5.0 * seed}
    )
    gone = {("noise, wide", 3), ("noise", 0), ("noise", 2)}
    kept = [row for row in rows if (row["variant"], row["seed"]) not in gone]
    conclusion = find("001-a6").analyse(kept).conclusion
    assert "(n = 4); noise:" in conclusion
    assert "(n = 2; no run of noise with seed 0, 2); noise, wide:" in conclusion
    assert conclusion.endswith("(n = 3; no run of noise, wide with seed 3).")
    first = find("001-a6").analyse([row for row in rows if row["seed"] or row["variant"] == "SAM"])
    assert "(n = 3; no run of plain with seed 0); noise:" in first.conclusion


def test_masking_that_helps_is_said_first():
    rows = rows_of(
        "001-table-5",
        [{MASK: mask} for mask in (0.0, 0.7)],
        lambda axis, seed: {
            "test_accuracy": 0.7 + (0.1 + 0.001 * seed) * bool(axis[MASK]),
            TRACE: 100 + seed * bool(axis[MASK]),
            LARGEST: 10 + (-1) ** seed * bool(axis[MASK]),
        },
    )
    outcome = judged("001-table-5", rows, "-?0", "no")
    assert (
        "the test accuracy is higher, the reverse of the claim"
        in (outcome.conclusion.partition(". ")[0])
    )
    assert [cells[2] for cells in outcome.table.rows] == [4, 4]


def test_nothing_at_or_below_zero_is_drawn_on_a_logarithmic_axis():
    nan = math.nan
    lines = [
        Series("a", [1, 2, 3], [5.0, 4.0, nan], [-1.0, 0.5, nan], [11.0, 8.0, nan]),
        Series("b", [1, 2], [-2.0, 3.0], [-3.0, 0.0], [1.0, 6.0]),
        Series("c", [1], [2.0]),
    ]
    first, second, third = (figure := log_figure("steps", "trace", lines)).series
    assert figure.log_y
    assert (first.x, first.y, first.low, first.high) == ([1, 2], [5, 4], [0.5, 0.5], [11, 8])
    assert (second.x, second.y, second.low, second.high) == ([2], [3.0], [0.5], [6.0])
    assert (third.x, third.low) == ([1], None)
    assert "left out" in figure.x_label
    assert "end at the smallest value" in figure.x_label


def test_a_figure_with_nothing_to_cut_says_nothing():
    lines = [Series("a", [1, 2], [5.0, 4.0], [1.0, 0.5], [11.0, 8.0])]
    figure = log_figure("steps", "trace", lines)
    assert figure.x_label == "steps"
    assert list(figure.series) == lines
