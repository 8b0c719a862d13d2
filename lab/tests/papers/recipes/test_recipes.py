"""Recipes: groups, numbers, parts and sentences as data, with answers from numpy and scipy."""

import dataclasses
import math

import numpy
import pytest
from scipy import stats

from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel_lab import Study
from spiritlevel_lab.claims.numbers import IntervalEstimate, mean
from spiritlevel_lab.papers import find, names
from spiritlevel_lab.papers.recipes.recipe import outcome
from spiritlevel_lab.papers.recipes.runs import GroupedRuns, with_derived
from spiritlevel_lab.papers.recipes.sentences import filled
from spiritlevel_lab.papers.recipes.statistics import computed
from spiritlevel_lab.papers.registry import claim_documents, read_experiment, study_parts

RANDOM = numpy.random.default_rng(0)
ROWS = [
    {"way": way, "seed": seed, "x": RANDOM.uniform(1, 2), "y": RANDOM.uniform(), "on": seed % 2}
    for way in ("a", "b")
    for seed in range(6)
]
GROUPS = {"by": "way", "names": {"a": "first", "b": "second"}, "heading": "training"}
RUNS = GroupedRuns.of(ROWS, GROUPS)


def of(way, name):
    return numpy.array([row[name] for row in ROWS if row["way"] == way])


def example(**recipe):
    """An experiment of three lines, judged by a recipe."""
    shown = {"groups": GROUPS, "table": ["x"], "conclusion": "x is {x}."} | recipe
    return dataclasses.replace(find("001-a6"), recipe=shown, paper_values={"x, second": 1.5})


@pytest.mark.parametrize(
    ("spec", "groups"),
    [
        ({"by": "way"}, ["a", "b"]),
        ({"by": "way", "names": ["b", "a", "c"]}, ["b", "a"]),
        ({"by": "way", "names": ["b", "c"], "all": True}, ["b", "c"]),
        ({"by": "way", "then": {"by": "on"}}, [("a", 0), ("a", 1), ("b", 0), ("b", 1)]),
    ],
)
def test_groups(spec, groups):
    runs = GroupedRuns.of(ROWS, spec)
    assert list(runs.groups) == groups
    assert runs.named("nobody") == []
    if "then" in spec:
        assert len(runs.named("a")) == 6
        assert [row["on"] for row in runs.named(("a", 1))] == [1, 1, 1]


def test_stages_and_points_of_a_run_are_compared_with_themselves():
    rows = [{"seed": 7, "x/old": 1.0, "x/new": 3.0}, {"seed": 7, "x/old": 2.0, "x/new": 6.0}]
    runs = GroupedRuns.of(rows, {"stages": {"old": "before", "new": "after"}})
    change = computed({"difference": "x", "of": "after", "against": "before"}, runs)
    assert (change.value, change.n) == (3.0, 2)
    rows = [{"x/1": 5.0, "task.step/1": 10.0, "x/2": 4.0, "task.step/2": None}]
    points = GroupedRuns.of(rows, {"points": 2})
    assert [row["x"] for point in (1, 2) for row in points.named(point)] == [5.0, 4.0]
    assert points.names(1) == [10.0]
    assert math.isnan(points.names(2)[0])


def test_columns_that_are_made_from_others():
    [row, *_] = with_derived(ROWS, {"z": {"from": "way", "values": {"a": 3}}})
    assert (row["z"], row["x"]) == (3, ROWS[0]["x"])
    assert with_derived(ROWS, {"z": {"from": "way", "values": {"a": 3}}})[-1]["z"] is None


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        ({"mean": "x", "of": "first"}, of("a", "x").mean()),
        (
            {"difference": "x", "of": "second", "against": "first"},
            (of("b", "x") - of("a", "x")).mean(),
        ),
        (
            {"factor": "x", "of": "second", "against": "first"},
            stats.gmean(of("b", "x") / of("a", "x")),
        ),
        ({"factor": "x", "of": "first", "to": "second"}, stats.gmean(of("b", "x") / of("a", "x"))),
        ({"share": "on"}, 0.5),
        ({"spread": "x", "of": "first"}, of("a", "x").std(ddof=1)),
        ({"pearson": ["x", "y"], "of": "first"}, stats.pearsonr(of("a", "x"), of("a", "y"))[0]),
        (
            {"pearson": ["x", "y"], "of": "first", "log": "x", "squared": True},
            stats.pearsonr(numpy.log(of("a", "x")), of("a", "y"))[0] ** 2,
        ),
        (
            {"spearman": ["x", "y"], "among": {"way": ["b"]}},
            stats.spearmanr(of("b", "x"), of("b", "y"))[0],
        ),
    ],
)
def test_numbers(spec, value):
    assert computed(spec, RUNS).value == pytest.approx(value)


def test_numbers_in_words():
    lower = sum(of("b", "x") < of("a", "x"))
    spec = {"lower": "x", "of": "second", "against": "first"}
    assert computed(spec, RUNS) == f"lower in {lower} of 6 pairs"
    assert computed({"count": "on", "is": 1}, RUNS) == 6
    low, high = (f"{end(of('a', 'x')):.3g}" for end in (numpy.min, numpy.max))
    assert computed({"range": "x", "of": "first"}, RUNS) == f"{low} and {high}"
    fewer = GroupedRuns.of(ROWS[:-1], GROUPS)
    assert computed({"pairs": "seed", "of": "second", "against": "first"}, fewer) == (
        "n = 5; no run of second with seed 5"
    )


def test_a_correlation_within_settings():
    """It rises in each of four ways, though one with larger x has a smaller y."""
    random = numpy.random.default_rng(0)
    rows = []
    for place, way in enumerate("abcd"):
        for seed in range(5):
            own = random.normal()
            row = {"way": way, "seed": seed, "x": own + 10 * place}
            rows.append(row | {"y": own + 0.2 * random.normal() - 10 * place})
    spec = {"within": ["x", "y"], "settings": ["way"]}
    found = computed(spec, GroupedRuns(rows, {}))
    assert found.n == 4
    assert found.low > 0 > computed({"spearman": ["x", "y"]}, GroupedRuns(rows, {})).value
    alone = GroupedRuns([row for row in rows if row["way"] == "a"], {})
    assert math.isnan(computed(spec, alone).value)


@pytest.mark.parametrize(
    ("low", "high", "phrase", "words"),
    [
        (1.0, 3.0, "moves", "rises"),
        (-3.0, -1.0, "moves", "falls"),
        (-1.0, 3.0, "moves", "does not clearly rise or fall"),
        (-1.0, 3.0, "trend", "does not clearly move (Spearman 2 [-1, 3])"),
        (1.0, 3.0, "counted trend", "rises (Spearman 2 [1, 3], n = 9)"),
        (
            1.0,
            3.0,
            "lower, as claimed",
            "is higher, the reverse of the claim: it changes by 2 [1, 3]",
        ),
        (-1.0, 3.0, "lower, as claimed", "changes by 2 [-1, 3]"),
    ],
)
def test_phrases(low, high, phrase, words):
    number = IntervalEstimate(2.0, low, high, 9)
    assert filled(f"it {{x:{phrase}}}.", {"x": number}) == f"it {words}."
    assert filled("{x.value:3 digits}", {"x": number}) == "2"


def test_an_outcome_from_a_recipe():
    recipe = {
        "numbers": {"x": {"difference": "x", "of": "second", "against": "first"}},
        "each": {
            "mean": {"mean": "y"},
            "other": {"factor": "x", "against": "first", "but": ["first"]},
        },
        "table": ["x", {"mean of y": "mean", "over first": "other"}],
        "figure": {"x": "x", "y": "y", "x_label": "across", "y_label": "up", "linear": True},
        "parts": [
            {"below": "x", "bound": 9.0, "part": "x is small"},
            {"above": "mean", "bound": 9.0, "all": "y is large", "part": "in {group}"},
        ],
        "added": [{"above": "mean", "part": "y is above 0 in {group}"}],
        "lists": {"means": {"each": "{mean.value:.2f} in {group}", "join": " and "}},
        "conclusion": "x changes by {x}; y is {means}; {held} of {n}.",
        "reproduced": {"x": "x"},
        "ratios": {"over": "first", "of": ["x"]},
    }
    found = outcome(example(**recipe), ROWS)
    assert found.table.columns == ("training", "n", "x", "mean of y", "over first")
    assert [row[:2] for row in found.table.rows] == [["first", 6], ["second", 6]]
    assert found.table.rows[0][-1] is None  # a group is not compared with itself
    results = ["held", "not held", "held", "held"]
    assert [finding.result for finding in found.findings] == results
    assert found.agrees == "partly"
    assert found.findings[1].seen.startswith("in first: ")
    assert found.findings[3].part == "y is above 0 in second"
    y = [f"{of(way, 'y').mean():.2f}" for way in "ab"]
    assert found.conclusion.endswith(f"; y is {y[0]} in first and {y[1]} in second; 1 of 12.")
    assert list(found.reproduced_values) == ["x, second"]  # the paper has no other
    assert found.reproduced_values["x, second"] == mean(of("b", "x"))
    assert not found.figure.log_x
    assert found.more[0].title == "As ratios"


@pytest.mark.parametrize(
    ("verdict", "bounds", "agrees"),
    [
        (None, (9.0, -9.0), "partly"),
        ("first enough", (-9.0, 9.0), "yes"),
        ("first enough", (9.0, -9.0), "partly"),
        ("first needed", (9.0, -9.0), "no"),
        ("first needed", (-9.0, 9.0), "partly"),
    ],
)
def test_verdicts_that_look_at_the_first_part(verdict, bounds, agrees):
    parts = [{"above": "x", "bound": bound, "part": "x is large"} for bound in bounds]
    more = {} if verdict is None else {"verdict": verdict}
    found = outcome(example(numbers={"x": {"mean": "x"}}, parts=parts, **more), ROWS)
    assert found.agrees == agrees


def test_numbers_that_code_gives():
    part = {"above": "extra", "part": "it is"}
    number = IntervalEstimate(2.0, 1.0, 3.0, 9)
    found = outcome(
        example(parts=[part], conclusion="{extra}, {word}."), ROWS, extra=number, word="so"
    )
    assert (found.agrees, found.conclusion) == ("yes", "2 [1, 3], so.")


def test_claims_stand_behind_their_studies_and_change_no_run():
    for part in study_parts():
        study = Study.from_yaml(part.read_text("utf-8"))
        assert study.name == part.name.removesuffix(".yaml")
    behind = {name: document.study for name, document in claim_documents().items()}
    assert sorted(behind) == names()
    assert behind["000-fig-3"] == behind["000-table-3"] == "000-table-3"
    assert find("000-fig-4").scaled_down[""] == find("000-table-3").scaled_down[""]
    assert str(find("000-fig-9").trained) != str(find("000-table-6").trained)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("title:", "titel:", r"claim 001-a6 has an unknown key 'titel'. Did you mean 'title'"),
        ("  ratios:", "  ratio:", r"analysis of 001-a6 has an unknown key 'ratio'. Did you mean"),
    ],
)
def test_a_word_that_no_claim_has_is_refused(old, new, said):
    document = claim_documents()["001-a6"]
    with pytest.raises(SpiritlevelError, match=said):
        read_experiment(dataclasses.replace(document, text=document.text.replace(old, new, 1)))


def test_texts_of_claims_have_their_thresholds():
    assert "more than 0.001, and" in find("001-fig-1").rule
    assert "at least 95% of" in find("002-fig-4").rule
    assert find("001-table-2").rule.endswith("at most partly reproduced.")
    assert find("001-table-1").paper_values["test accuracy, unmasked"] == (0.7868 + 0.7911) / 2


def test_a_ratio_of_two_columns():
    rows = [{"a": 3.0, "b": 2.0}, {"a": 3.0, "b": 0.0}, {"a": None, "b": 2.0}, {"b": 2.0}]
    found = with_derived(rows, {"c": {"ratio": ["a", "b"], "times": 4.0}})
    assert [row["c"] for row in found] == [6.0, None, None, None]
