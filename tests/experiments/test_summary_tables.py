"""The two tables of the summary: scale beside the papers, and all parts of all claims."""

import math
import re

import pytest
from publishing.in_short import in_short
from publishing.population_lines import OVER_ALL, WITHIN, MeasuredPopulation, MeasureLine
from publishing.recorded import load
from publishing.results import ScaleResult
from publishing.scale_table import scale_table
from publishing.summary import claims_table
from publishing.what_holds import _in_words, further_populations, what_holds

from spiritlevel.content import Table
from spiritlevel.papers import find, names
from spiritlevel.papers.judging.experiment import Outcome
from spiritlevel.papers.judging.findings import Finding, above, fact
from spiritlevel.papers.judging.numbers import IntervalEstimate
from spiritlevel.papers.judging.scale import SMALLER, at_the_papers_scale, verdict_in_words
from spiritlevel.papers.records import Record
from spiritlevel.study import control
from spiritlevel.study.statistics import Correlation, levels


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
    assert (images, runs, trained) == ("5,000 of CIFAR-10", 32, "31 of 32")
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
    assert verdict_in_words("yes", study) == ("reproduced" if beside else SMALLER)
    assert verdict_in_words("partly", study) == "partly reproduced"


@pytest.mark.nightly
def test_what_holds_has_every_experiment_once_and_both_levels(request):
    folder = request.config.rootpath / "experiments/results"
    # of the scales of 003-fig-3 that whose settings are in perfect order
    found = {name: [r for r in load(folder, name) if r.preset != "h200-full"] for name in names()}
    # two of each: if the nearest has too few seeds to look within settings, the next one is shown
    results = [
        [ScaleResult.of(each, find(name)) for each in scales[:2]]
        for name, scales in found.items()
        if scales
    ]
    page = what_holds(results)
    for result, *_ in results:
        assert page.count(f"](experiments/{result.experiment.name}.md)") == 1
    *sections, _, others = re.split(r"^### ", page, flags=re.M)[1:]
    assert "\n| 000-table-3, h200-cifar100 | ResNet-18 (width 32), 20,000 of CIFAR-10 | " in others
    named = {section.partition(":")[0]: section for section in sections}
    assert set(named) == {"000-table-3", "002-fig-5", "003-fig-1", "003-fig-3"}
    rows = {
        name: dict(re.findall(r"^\| (\S+\.\S+) \| (.*) \|$", section, re.M))
        for name, section in named.items()
    }
    assert set(rows["003-fig-1"]) == {
        f"{name}\\[head\\]"
        for name in ("scaled.lambda\\_max", "scaled.trace", "relative.kappa", "neuron.rho\\_sum")
    }
    assert named["002-fig-5"].startswith("002-fig-5: LeNet-5, 10,000 of CIFAR-10\n")
    assert "\n110 trained networks of 8 settings, with a training loss of " in named["002-fig-5"]
    # over settings alone it would be [+0.13, +0.45]
    levels = "+0.29 [−0.00, +0.58] | 7 of 8 | −0.43 [−0.88, +0.43] |"
    assert rows["002-fig-5"]["head.kappa"].startswith(levels)
    assert "levels (correlations below 0.1 left out): `head.kappa` in 002-fig-5" in page
    figure = "![minima of LeNet-5 and five measures](experiments/002-fig-5-h200.svg)"
    assert figure in named["002-fig-5"]
    assert "| +1.00 [−0.69, +1.00] |" in page  # four settings in perfect order prove little
    assert "+1.00, +1.00]" not in page


def found(slope):
    """Eight settings of two networks each; the gap follows the measure up to a little."""
    values = [float(i // 2) + 0.1 * (i % 2) for i in range(16)]
    gaps = [slope * value + 0.3 * (i % 3) for i, value in enumerate(values)]
    return levels(values, gaps, [i // 2 for i in range(16)])


def line(measure, population, slope, held_fixed):
    fixed = found(held_fixed).clustered
    return MeasureLine(population, measure, found(slope), fixed, fixed)


def test_further_populations_have_two_measures_each():
    lines = [line(measure, "002-fig-5", 1.0, 1.0) for measure in ("a", "b", "c")]
    title, _, table = further_populations([MeasuredPopulation(result_of([]), lines)])
    assert title.startswith("### ")
    rows = [row.strip("| ").split(" | ") for row in table.splitlines()[2:]]
    within, over_all = (str(lines[0].views[view]) for view in (WITHIN, OVER_ALL))
    start = ["002-fig-5, h200", "LeNet-5, 10,000 of CIFAR-10", "16", "8"]
    assert rows == [[*start, "a", within, over_all], [*start, "b", within, over_all]]
    assert further_populations([]) == []


def test_what_holds_names_measures_by_what_their_intervals_say():
    opposite = [line("a", "x", 1.0, 1.0), line("a", "y", -1.0, -1.0), line("b", "x", 1.0, 1.0)]
    lines = _in_words(opposite)
    assert lines[2].endswith("above 0 over all networks, counting settings: `a` in x, `b` in x.")
    assert lines[3].endswith("below 0 over all networks, counting settings: `a` in y.")
    assert lines[4].endswith("uncertainty held fixed: `a` in x, `b` in x.")
    assert lines[5].endswith("with both held fixed: `a` in y.")


def test_in_short_says_when_populations_disagree():
    def bullets(*lines):
        return in_short(lines)[-1].splitlines()[1:-1]

    [said] = bullets(line("a", "x", 1.0, 1.0), line("a", "y", -1.0, -1.0))
    assert re.search(
        r"rises with `a` in x \(\+.*\) and falls with it in y \(−.*\), also with", said
    )
    [said] = bullets(line("a", "x", 1.0, 1.0), line("a", "y", -1.0, 0.5))
    assert "), but not with the training loss held fixed" in said
    assert len(bullets(line("a", "x", 1.0, 1.0), line("b", "y", -1.0, 0.0))) == 0
    assert len(bullets(line("a", "x", 1.0, 1.0), line("a", "y", 0.0, 1.0))) == 0


def test_in_short_says_what_is_unclear_if_shared_values_count_once():
    rates = [0, 1, 2, 3, 4] * 6
    values = [rate + 0.1 * (i % 7) for i, rate in enumerate(rates)]
    gaps = [[1, 0, 3, 4, 2][rate] + 0.1 * (i % 5) for i, rate in enumerate(rates)]
    axes = {"lr": rates, "batch_size": ([8] * 5 + [16] * 5) * 3}
    shared = levels(values, gaps, [*zip(*axes.values(), strict=True)], axes=axes)
    assert shared.doubt == "lr"
    doubted = MeasureLine("x", "a", shared, shared.clustered, shared.clustered)
    clear = [line("a", "y", -1.0, -1.0), line("b", "y", 1.0, 1.0), line("c", "y", 0.0, 0.0)]
    _, table, bullets = in_short([doubted, *clear])
    first, second, _ = bullets.splitlines()
    assert "Of the 3 results that are clear over all networks" in first
    assert ", 2 are clear by the widest interval" in first
    assert "By the widest interval it is unclear in x. Across" in second
    [cells] = [each for each in table.splitlines() if "widest" in each]
    assert cells == "| over all, widest interval | 1 | 1 | 2 |"


def test_in_short_counts_measures_of_flatness_alone():
    lines = [
        line("curvature.trace", "x", 0.4, 0.0),
        line("norms.weight[head]", "x", 9.0, 9.0),
        line("head.kappa", "x", 0.0, -1.0),
        line("norms.weight", "y", -0.3, -1.0),  # weaker, though larger
        line("head.kappa", "y", -0.5, 1.0),
    ]
    question, table, bullets = in_short(lines)
    assert "?** Not always. The table counts 3 results, " in question
    assert "in one of 2 populations" in question
    assert "?** The table counts 1 " in in_short(lines[:1])[0]
    rows = [[cell.strip() for cell in each.split("|")[1:-1]] for each in table.splitlines()[2:]]
    assert [cells[1:] for cells in rows if cells[0].startswith("over all")] == [["1", "1", "1"]] * 2
    assert [cells[1:] for cells in rows if "loss" in cells[0]] == [["1", "1", "1"]] * 2
    [other] = re.findall("In . the strongest correlation.*", bullets)
    assert other.startswith("In x ")
    assert "`norms.weight[head]`" in other
    assert other.endswith("(`curvature.trace`).")
