"""The two tables of the summary: scale beside the papers, and all parts of all claims."""

import dataclasses
import math
import re

import pytest
from scipy import stats

from publishing.forest import forest
from publishing.population_lines import LEVELS, MeasuredPopulation, MeasureLine, population
from publishing.recorded import Record, load
from publishing.results import ScaleResult
from publishing.scale_table import scale_table
from publishing.summary import claims_table, earlier_table
from publishing.what_holds import what_holds
from spiritlevel.records.content import Table
from spiritlevel_lab.claims.experiment import Outcome
from spiritlevel_lab.claims.findings import Finding, above, fact
from spiritlevel_lab.claims.numbers import IntervalEstimate
from spiritlevel_lab.claims.population import OVER_ALL
from spiritlevel_lab.claims.rows import OUTCOMES
from spiritlevel_lab.claims.scale import SMALLER as SCALE
from spiritlevel_lab.claims.scale import at_the_papers_scale, verdict_in_words
from spiritlevel_lab.papers import find
from spiritlevel_lab.population import control
from spiritlevel_lab.statistics import Correlation, Judged


def result_of(findings):
    outcome = Outcome(Table((), []), findings, "no", "")
    return ScaleResult(find("002-fig-5"), Record("002-fig-5", "h200", (), 1.0, 0, ()), outcome)


def test_parts_with_their_numbers():
    rank = Correlation("spearman", 0.1, -0.5, 0.6, 0.5, 84, 0, "", 0.95, clusters=12)
    table = claims_table(
        [
            result_of(
                [
                    above("over settings", rank, paper=0.76),
                    above("over runs", IntervalEstimate(0.5, 0.25, 0.75, 9)),
                    above("one run", IntervalEstimate(0.5, math.nan, math.nan, 1)),
                    fact("without a number", True, "7 of 9"),
                    Finding("made by hand", "held", IntervalEstimate(2.0, 1.0, 3.0, 5)),
                ]
            )
        ]
    )
    assert [list(row[1:]) for row in table.rows] == [
        ["over settings", "0.76", "0.1", "[-0.5, 0.6]", 84, 12, "not held"],
        ["over runs", None, "0.5", "[0.25, 0.75]", 9, None, "held"],
        ["one run", None, "0.5", None, 1, None, "undecided"],
        ["without a number", None, "7 of 9", None, None, None, "held"],
        ["made by hand", None, "2", "[1, 3]", 5, None, "held"],
    ]


def test_scale_of_recorded_runs(request):
    folder = request.config.rootpath / "experiments/results"
    found = {}  # rows of the others stand on the page that test_pages.py makes anew
    for name in ("000-table-5", "000-table-6", "002-fig-3", "004-table"):
        largest, *_ = load(folder, name)
        found[name] = list(scale_table([ScaleResult.of(largest)]).rows[0][1:])
    images, _, network, _, runs, trained, *_ = found["000-table-5"]
    assert (images, runs, trained) == ("5,000 of CIFAR-10", 32, "26 of 32")
    assert network == "VGG-16 (width 32), DenseNet-121 (growth 12)"
    assert found["004-table"][5] == "5 of 5"  # asked of those without a penalty
    assert found["004-table"][-1] == "0.258 to 0.27"
    assert found["002-fig-3"][:4] == ["drawn", "drawn", "not trained", "not trained"]
    assert found["000-table-6"][-2:] == ["test 0.587, training 0.995", "0.735 to 0.822"]


@pytest.mark.parametrize(
    ("name", "preset", "beside"),
    [
        ("002-fig-5", "paper", True),
        ("002-fig-5", "h200", False),  # a fifth of the images
        ("000-table-7", "", False),  # digits instead of CIFAR-10
        ("001-fig-7", "", True),  # all of MNIST, and the paper's perceptron
        ("000-table-3", "h200", False),  # a quarter of the width
    ],
)
def test_what_stands_at_the_papers_scale(name, preset, beside):
    study = control.find(name)
    study = study.with_preset(preset) if preset else study
    assert at_the_papers_scale(study) is beside
    assert verdict_in_words("yes", study) == "reproduced" + ("" if beside else SCALE)
    assert verdict_in_words("undecided", study) == "undecided"


def line(sides):
    """A measure whose correlation with each outcome, on each level, lies where the sides say."""
    ends = {"smaller": (0.1, 0.9), "larger": (-0.9, -0.1), "unclear": (-0.5, 0.6)}
    views = [(level, outcome) for level in LEVELS for outcome in OUTCOMES]
    found = {
        view: Judged(sum(ends[side]) / 2, *ends[side], 0.01, 40, "settings", 8, (), 0.95)
        for view, side in zip(views, sides, strict=True)
    }
    return MeasureLine("head.kappa", found)


SMALLER, LARGER, UNCLEAR = "smaller", "larger", "unclear"
MIXED = [UNCLEAR, LARGER, SMALLER, UNCLEAR, UNCLEAR, LARGER]


def populations_of(*lines):
    return [MeasuredPopulation(result_of([]), 40, 8, lines)]


def test_what_holds_counts_each_outcome_on_each_level():
    page = what_holds([[result_of([])]], populations_of(line(MIXED), line([SMALLER] * 6)))
    rows = [cells.split(" | ") for cells in re.findall(r"^\| ((?:within|over).*) \|$", page, re.M)]
    assert [row[0] for row in rows] == [
        f"{level}: {words}" for level in LEVELS for words in OUTCOMES.values()
    ]
    assert [row[1:] for row in rows] == [
        *(["1", "0", "1"], ["1", "1", "0"], ["2", "0", "0"]),
        *(["1", "0", "1"], ["1", "0", "1"], ["1", "1", "0"]),
    ]
    assert "smaller test error in 2 of 2 results (larger in 0)" in page
    assert "gap of the losses in 1 (larger in 0)" in page
    assert "different ways, the test error is clearly smaller in 1 (larger in 1)." in page


def test_what_holds_is_short_and_names_papers_by_author(request):
    page = (request.config.rootpath / "docs/what-holds.md").read_text("utf-8")
    text = re.sub(r"\]\([^)]*\)", "]", page)  # ids stand in links alone
    assert len(text.split()) <= 600
    assert "Petzka et al. 2021, Fig. 5" in text
    assert not re.findall(r"\b00[0-4]-\w+", text)
    assert page.count("![") == 1
    assert page.count("\n| ") <= 2 + 10
    assert "|" not in what_holds([[result_of([])]], [])  # no population, no table


def test_the_picture_has_a_mark_for_each_outcome_on_each_level():
    drawn = forest(populations_of(line(MIXED)) * 2).decode()
    assert drawn == forest(populations_of(line(MIXED)) * 2).decode()
    for words in (*OUTCOMES.values(), *LEVELS):
        assert drawn.count(f"<!-- {words} -->") == 1
    assert drawn.count("Petzka et al. 2021, Fig. 5") == 2


def test_populations_are_those_that_are_judged_and_repeat_settings(request):
    folder = request.config.rootpath / "experiments/results"
    by_preset = {r.preset: ScaleResult.of(r) for r in load(folder, "003-fig-1")}
    assert population(by_preset["h200-full"]) is None  # none of its 81 networks was trained
    found = population(by_preset["h200-accuracy"])
    assert (found.num_networks, found.num_settings) == (96, 24)
    assert [each.measure for each in found.lines] == [
        *("scaled.lambda_max[head]", "scaled.trace[head]", "relative.kappa[head]"),
        "neuron.rho_sum[head]",
    ]
    nearest, *_ = load(folder, "000-table-3")  # its norm of the head measures no flatness
    heads = population(ScaleResult.of(nearest))
    assert [each.measure for each in heads.lines] == ["head.kappa", "head.trace"]
    rows = [row | {"test_error": 1 - row["test_accuracy"]} for row in found.result.record.rows]
    for outcome in OUTCOMES:
        view = found.lines[1].views[OVER_ALL, outcome]
        columns = [[row[name] for row in rows] for name in ("scaled.trace[head]", outcome)]
        assert view.value == pytest.approx(stats.spearmanr(*columns).statistic)


def test_what_the_verdicts_were_is_beside_what_they_are():
    results = [result_of([]), dataclasses.replace(result_of([]), experiment=find("001-a6"))]
    table = earlier_table(results, {"002-fig-5": ["h200-full", "partly reproduced"]})
    assert [list(row) for row in table.rows] == [
        ["002-fig-5", "partly reproduced", results[0].verdict, "h200-full, now h200"],
        ["001-a6", "not judged then", results[1].verdict, "none, now h200"],
    ]


@pytest.mark.parametrize("agrees", ["yes", "partly", "no"])
def test_every_verdict_says_its_scale(agrees):
    words = {
        preset: verdict_in_words(agrees, control.find("002-fig-5").with_preset(preset))
        for preset in ("paper", "h200")
    }
    assert words["h200"] == words["paper"] + SCALE
