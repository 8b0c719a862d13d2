"""Paper 001: parts of claims that were added later, further tables, and what conclusions say."""

import math

import numpy
import pytest
from scipy import stats

from spiritlevel_lab.claims.findings import Finding, with_added
from spiritlevel_lab.claims.numbers import IntervalEstimate, as_correlation
from spiritlevel_lab.papers import find

LARGEST, TRACE, GINI = "curvature.lambda_max", "curvature.trace", "softmax.gini"
JACOBIAN, FREQUENCY = "sensitivity.jacobian", "activity.frequency"
NOISE, SHIFT = "interventions.input_noise", "interventions.bias_shift"
SEEDS = range(4)


def row_of(name, **numbers):
    return dict.fromkeys(find(name).columns, 1.0) | {"outcome": "train_accuracy"} | numbers


def results(outcome, since):
    return [finding.result for finding in outcome.findings[since:]]


@pytest.mark.parametrize(
    ("before", "added", "after"),
    [
        ("yes", ["held", "not refuted"], "yes"),
        ("yes", [], "yes"),
        ("yes", ["held", "undecided"], "partly"),
        ("yes", ["not held"], "partly"),
        ("partly", ["held"], "partly"),
        ("undecided", ["not held"], "undecided"),
        ("undecided", ["held"], "undecided"),
        ("no", ["held"], "no"),
    ],
)
def test_added_parts_take_and_never_give(before, added, after):
    assert with_added(before, [Finding("", result, "") for result in added]) == after


@pytest.mark.parametrize(
    ("ends", "cut"),
    [((0.8, 1.1), (0.8, 1.0)), ((-1.03, -0.5), (-1.0, -0.5)), ((-0.2, 0.3), (-0.2, 0.3))],
)
def test_interval_of_a_correlation_stays_within_one(ends, cut):
    found = as_correlation(IntervalEstimate(0.5, *ends, 3))
    assert (found.value, found.low, found.high, found.n) == (0.5, *cut, 3)


def test_one_correlation_still_has_no_interval():
    found = as_correlation(IntervalEstimate(0.5, math.nan, math.nan, 1))
    assert math.isnan(found.low)
    assert math.isnan(found.high)


@pytest.mark.parametrize("name", ["001-fig-7", "001-fig-8"])
def test_no_page_has_a_correlation_beyond_one(name):
    rows = []
    for seed in range(3):  # correlations of 1, 1 and about 0.9: Student's interval passes 1
        points = range(1, 13)
        swapped = {11: 12, 12: 11, 5: 8, 8: 5} if seed == 2 else {}
        looks = {f"{TRACE}/{p}": float(p) for p in points}
        looks |= {f"{FREQUENCY}/{p}": float(swapped.get(p, p)) for p in points}
        looks |= {f"task.signal_norm/{p}": float(swapped.get(p, p)) for p in points}
        rows.append(row_of(name, lr=0.1, seed=seed, **looks))
    runs = [
        stats.spearmanr(
            [r[f"{TRACE}/{p}"] for p in points], [r[f"{FREQUENCY}/{p}"] for p in points]
        )
        for r in rows
    ]
    values = [run.statistic for run in runs]
    low, high = stats.t.interval(0.95, 2, numpy.mean(values), stats.sem(values))
    assert high > 1
    seen = find(name).analyse(rows).findings[-1].seen
    assert (seen.low, seen.high) == (pytest.approx(low), 1.0)


def scaled(factors):
    return [
        row_of(
            "001-fig-1",
            model=model,
            seed=seed,
            **{f"{LARGEST}/plain": 2.0, f"{LARGEST}/all": 2.0 * factor},
        )
        for model, found in factors.items()
        for seed, factor in enumerate(found)
    ]


def test_growth_in_the_papers_network_stands_at_the_papers_scales():
    outcome = find("001-fig-1").analyse(scaled({"resnet18": [9.0, 35.0], "vgg_small": [900.0]}))
    name = "resnet18: factor of the largest eigenvalue"
    assert outcome.reproduced_values[name].value == pytest.approx(22.0)
    assert find("001-fig-1").paper_values[name] == pytest.approx(1.592e6, rel=1e-3)
    assert "factor of 1.59e+06 was not seen in ResNet-18" in outcome.conclusion
    assert "the largest there is 35." in outcome.conclusion


def test_other_growth_is_told_apart():
    grown = find("001-fig-1").analyse(scaled({"resnet18": [2e6], "vgg_small": [11.0]}))
    assert "comes to the paper's factor of 1.59e+06" in grown.conclusion
    alone = find("001-fig-1").analyse(scaled({"vgg_small": [11.0]}))
    assert "ResNet-18, the paper's network, is not among these" in alone.conclusion


def test_each_layers_activity_is_shown_where_it_was_recorded():
    layers = {f"{FREQUENCY}[relu1]": 0.1, f"{FREQUENCY}[relu2]": -0.2}
    rows = [
        row_of("001-fig-2", seed=seed)
        | {SHIFT: shift}
        | {layer: 0.5 + slope * shift + 0.001 * seed for layer, slope in layers.items()}
        for shift in (-1.0, 0.0, 1.0)
        for seed in SEEDS
    ]
    section, _ = find("001-fig-2").analyse(rows).more
    assert section.columns[2:] == tuple(layers)
    assert [cells[2].value for cells in section.rows[:3]] == pytest.approx([0.4015, 0.5015, 0.6015])
    for cell, layer in zip(section.rows[3][2:], layers, strict=True):
        ranks = stats.spearmanr([row[SHIFT] for row in rows], [row[layer] for row in rows])
        assert cell.value == pytest.approx(ranks.statistic)
    bare = [{k: v for k, v in row.items() if k not in layers} for row in rows]
    (other,) = find("001-fig-2").analyse(bare).more
    assert "layer" not in other.title


def test_epochs_stand_at_the_papers_scales():
    rows = [
        row_of("001-fig-3", variant=variant, seed=seed, epoch=epoch + seed)
        for variant, epoch in (("plain", 10), ("augmented", 50))
        for seed in range(3)
    ]
    outcome = find("001-fig-3").analyse(rows)
    assert outcome.reproduced_values["epoch, plain"].value == pytest.approx(11.0)
    assert outcome.reproduced_values["epoch, augmented"].value == pytest.approx(51.0)


def courses(ratio_before, ratio_after, fixed_before):
    """Traces of plain networks over those of augmented ones; eigenvalues are alike."""
    rows = []
    for name in ("plain", "augmented", "plain, norms fixed", "augmented, norms fixed"):
        for seed in range(3):
            row = row_of("001-fig-5", variant=name, seed=seed)
            for point in range(1, 9):
                fitted = point >= 5 and seed < 2  # the last network never is
                ratio = ratio_after if fitted else ratio_before
                if "fixed" in name:
                    ratio = fixed_before
                row[f"task.train_accuracy/{point}"] = 0.95 if fitted else 0.5
                row[f"curvature.ggn_trace/{point}"] = 7.0 * (ratio if "plain" in name else 1.0)
            rows.append(row)
    return rows


def test_distances_of_traces_are_shown_with_those_of_eigenvalues():
    outcome = find("001-fig-5").analyse(courses(10.0, 1000.0, 100.0))
    (section,) = outcome.more
    eigenvalues, traces = ([cell.value for cell in row[1:]] for row in section.rows)
    assert eigenvalues == pytest.approx([0.0, 0.0, 0.0])
    assert traces == pytest.approx([1.0, 2.0, 1.0])  # orders of magnitude
    assert "(n = 2: 2 of 3 plain networks reach it)" in outcome.conclusion


def test_a_trace_of_zero_has_no_logarithm_and_is_left_out():
    rows = courses(10.0, 1000.0, 100.0)
    rows[0]["curvature.ggn_trace/8"] = 0.0
    (section,) = find("001-fig-5").analyse(rows).more
    assert section.rows[1][2].value == pytest.approx(2.0)


def noisy(levels, *, accuracy=0.1, last=-20.0, goes_along=0.0):
    """Fixed norms let the trace fall; at the last level it moves by `last` from the one before.

    With them alone the other numbers may go along with it.
    """
    rows = []
    for fixed in (False, True):
        for place, noise in enumerate(levels):
            for seed in SEEDS:
                trace = 1000.0 + 3.0 * ((place + seed) % 2)
                if fixed:
                    trace -= 20.0 * min(place, len(levels) - 2)
                    trace += last * (place == len(levels) - 1)
                along = goes_along * fixed
                other = along * trace + (1 - along) * seed
                numbers = {NOISE: noise, TRACE: trace, JACOBIAN: other, GINI: -other}
                learned = {"train_accuracy": accuracy + 0.01 * (-1) ** seed}
                rows.append(row_of("001-fig-6", norm_control=fixed, seed=seed) | numbers | learned)
    return rows


LEVELS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7)


@pytest.mark.parametrize(
    ("rows", "added", "agrees"),
    [
        (noisy(LEVELS), ["not refuted", "held", "not refuted", "not refuted"], "yes"),
        (
            noisy(LEVELS, accuracy=0.3),
            ["not held", "held", "not refuted", "not refuted"],
            "partly",
        ),
        (noisy(LEVELS, last=50.0), ["not refuted", "not held"], "partly"),
        (noisy(LEVELS, goes_along=0.5), ["not refuted", "held", "not held", "not held"], "partly"),
        (noisy(LEVELS[:5]), ["not refuted", "not refuted"], "yes"),  # no variance beyond 0.3
    ],
)
def test_noise_beyond_what_can_be_trained(rows, added, agrees):
    outcome = find("001-fig-6").analyse(rows)
    assert [finding.result for finding in outcome.findings[:2]] == ["held", "not refuted"]
    assert results(outcome, 2)[: len(added)] == added
    assert len(outcome.findings) - 2 == (4 if any(row[NOISE] == 0.7 for row in rows) else 2)
    assert outcome.agrees == agrees


def test_strongest_noise_is_held_against_the_strongest_within_the_limit():
    rows = noisy(LEVELS)
    traces = {(row[NOISE], row["seed"]): row[TRACE] for row in rows if row["norm_control"] is True}
    changes = [traces[0.7, seed] - traces[0.5, seed] for seed in SEEDS]
    low, high = stats.t.interval(0.95, 3, numpy.mean(changes), stats.sem(changes))
    seen = find("001-fig-6").analyse(rows).findings[3].seen
    assert (seen.low, seen.high) == (pytest.approx(low), pytest.approx(high))


@pytest.mark.parametrize(
    ("slope", "result", "agrees"), [(0, "not refuted", "yes"), (-1, "not held", "partly")]
)
def test_certainty_after_one_epoch(slope, result, agrees):
    trained = {"R = 1": 1, "R = 5": 5, "R = 10": 10}
    first = {f"R = {r}, one epoch": r for r in (5, 10, 20)}
    rows = [
        row_of("001-table-2", variant=name, seed=seed)
        | {TRACE: 500.0 + (1 if name in first else -1) * steps + 0.1 * seed}
        | {GINI: 0.6 + 0.01 * steps * (slope if name in first else -1) + 0.001 * seed}
        for name, steps in (first | trained).items()
        for seed in SEEDS
    ]
    outcome = find("001-table-2").analyse(rows)
    assert results(outcome, 0) == ["held", "held", "held", result]
    assert outcome.agrees == agrees


def leaking(leak, control):
    """Norms of all pixels, and of those outside the patch, as they are before any rescaling."""
    rows = []
    for kind, (whole, outside) in (("class", leak), ("control", control)):
        for seed in SEEDS:
            grown = 1 + 0.01 * seed
            numbers = {
                JACOBIAN: whole * grown,
                f"{JACOBIAN}_outside": outside * math.sqrt(64 / 960) * (grown + 0.001 * (seed % 2)),
                TRACE: (10.0 if kind == "class" else 50.0) + seed,
                GINI: (0.1 if kind == "class" else 0.5) + 0.01 * (seed % 3),
            }
            rows.append(
                row_of("001-table-3", seed=seed) | {"interventions.leakage": kind} | numbers
            )
    return rows


EVEN = math.sqrt(960 / 1024)  # of the norm lies outside the patch, where all pixels count alike


@pytest.mark.parametrize(
    ("leak", "control", "added", "agrees"),
    [
        ((60.0, 30.0), (20.0, 20 * EVEN), ["held", "held"], "yes"),
        ((60.0, 60 * 0.999), (20.0, 20 * EVEN), ["not held", "not held"], "partly"),
        ((60.0, 30.0), (20.0, 5.0), ["held", "not held"], "partly"),
    ],
)
def test_leaving_the_patch_out(leak, control, added, agrees):
    outcome = find("001-table-3").analyse(leaking(leak, control))
    assert results(outcome, 0) == ["held", "held", "held", *added]
    assert outcome.agrees == agrees
    ratio = outcome.findings[3].seen.value
    assert ratio == pytest.approx(leak[1] / leak[0] / EVEN, rel=1e-3)


def test_papers_norms_are_those_of_as_many_pixels():
    """What the page says of them: taken as they stand, more lies outside than there is at all."""
    paper = find("001-table-3").paper_values
    for kind in ("leak", "control"):
        outside = paper[f"{JACOBIAN}_outside, {kind}"] * math.sqrt(960 / 64)
        assert outside > paper[f"{JACOBIAN}, {kind}"]


@pytest.mark.parametrize(("change", "said"), [(0.04, True), (-0.04, False), (0.0, False)])
def test_masking_that_helps_is_called_the_reverse(change, said):
    rows = [
        row_of("001-table-5", seed=seed)
        | {"interventions.mask": mask}
        | {"test_accuracy": 0.7 + bool(mask) * (change + 0.001 * (-1) ** seed)}
        for mask in (0.0, 0.7)
        for seed in SEEDS
    ]
    conclusion = find("001-table-5").analyse(rows).conclusion
    assert ("the reverse of the claim" in conclusion) == said


def test_digits_are_not_passed_off_as_language():
    conclusion = find("001-fig-8").analyse([row_of("001-fig-8", seed=0)]).conclusion
    assert "images of digits" in conclusion
    assert "BoolQ" in conclusion
