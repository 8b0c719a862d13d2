"""Studies that are not finished: every experiment judges what is there, and raises nothing."""

import math
import pathlib

import pytest

from publishing import recorded as records
from publishing.series import svg
from spiritlevel_lab.claims.findings import VERDICTS, every, fact
from spiritlevel_lab.claims.scale import library_study
from spiritlevel_lab.papers import find, names
from spiritlevel_lab.papers.judgement import judge, judged
from spiritlevel_lab.papers.study_section import claim_first, claim_section

RESULTS = pathlib.Path(__file__).parents[3] / "experiments" / "results"
MOST = 24  # rows: enough to miss some
RECORDED = [name for name in names() if records.load(RESULTS, name)]


def recorded(name):
    """Rows of the smallest record of an experiment, and the settings that its study varies."""
    record = min(records.load(RESULTS, name), key=lambda found: len(found.rows))
    axes = library_study(find(name).study, record.preset).axes
    columns = [c for c in record.rows[0] if c in find(name).columns or "[" in c]  # or of a layer
    few = record.rows[:: math.ceil(len(record.rows) / MOST)]
    return [{c: row[c] for c in columns} for row in few], [axis for axis in axes if axis in columns]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", RECORDED)
def test_an_experiment_judges_the_runs_that_are_there(name):
    rows, axes = recorded(name)
    parts = [rows[:1], rows[-1:]]
    for axis in axes:
        first = rows[0][axis]
        parts.append([row for row in rows if row[axis] == first])
        parts.append([row for row in rows if row[axis] != first])
    outcomes = [judged(find(name), part) for part in parts if part]
    assert {outcome.agrees for outcome in outcomes} <= set(VERDICTS)
    drawn = outcomes[0].figure
    assert drawn is None or svg(drawn).startswith(b"<?xml")


def penalty_rows(*weights):
    return [
        {
            "task.weight": weight,
            "seed": seed,
            "test_accuracy": 0.3 + 0.01 * seed + 0.02 * (weight > 0),
            "task.best_accuracy": 0.4,
            "task.average_flatness": 10.0 - 5.0 * weight,
            "task.training_seconds": 10.0 + 20.0 * (weight > 0),
        }
        for weight in weights
        for seed in range(3)
    ]


@pytest.mark.parametrize(
    ("weights", "results", "says", "never"),
    [
        ((0.0,), ["undecided", "undecided"], "show no part of it yet", "long"),
        ((0.01,), ["undecided", "undecided"], "show no part of it yet", "long"),
        ((0.0, 0.1), ["held", "undecided"], "falls with every step of λ.", "accuracy"),
        ((0.01, 0.1), ["held", "undecided"], "falls with every step of λ.", "long"),
        ((0.0, 0.01), ["held", "held"], "accuracy changes by 0.02 [0.02, 0.02]", "yet"),
        ((0.0, 0.01), ["held", "held"], "and training takes 3 [3, 3] times as long", "yet"),
    ],
)
def test_a_penalty_is_judged_by_the_weights_that_are_there(weights, results, says, never):
    outcome = find("004-table").analyse(penalty_rows(*weights))
    assert [finding.result for finding in outcome.findings] == results
    assert says in outcome.conclusion
    assert never not in outcome.conclusion
    times = [
        outcome.reproduced_values[f"time over λ = 0, λ = {weight:g}"].value for weight in weights
    ]
    assert all(map(math.isfinite, times)) == (0.0 in weights)


def test_a_report_names_what_is_not_finished_yet():
    study = library_study("004-table")
    rows = [
        {"status": "pending", "outcome": None, "task.weight": run.axes["task.weight"]}
        for run in study.runs()
    ]
    done = [row | {"status": "done", "outcome": "epochs"} for row in penalty_rows(0.0, 0.1)]
    [judgement] = judge(study, [*done, *rows])
    assert judgement.verdict == "partly reproduced at a smaller scale, so far"
    assert judgement.missing == ("No run is finished yet with task.weight: 0.001, 0.01, 1.0.",)
    _, here, missing, *_ = claim_section(judgement).parts
    assert here.paragraphs[0].startswith("Here: The average of Tr(H²)/B falls")
    assert missing.paragraphs == judgement.missing


def test_what_no_run_shows_is_undecided():
    assert every("all of them", []).result == "undecided"
    assert fact("it does", None, "no run").result == "undecided"


def test_figures_are_judged_with_the_table_whose_runs_they_look_at():
    study = library_study("000-table-3")
    [found] = [each for each in records.load(RESULTS, "000-table-3") if each.preset == "h200"]
    added = {"status": "done", "train_accuracy": 1.0, "test_accuracy": 0.8}
    rows = [added | row for row in found.rows]  # of an older version, which recorded fewer columns
    table, bound, rates = judge(study, rows)
    names = [judgement.experiment.name for judgement in (table, bound, rates)]
    assert names == ["000-table-3", "000-fig-3", "000-fig-4"]
    assert bound.outcome.agrees == judged(find("000-fig-3"), found.rows).agrees
    sections = claim_first(study, rows).sections
    assert [each.id for each in sections] == [
        *("experiment", "experiment-000-fig-3", "experiment-000-fig-4")
    ]
    ids = [part.id for each in sections for part in each.parts if getattr(part, "id", "")]
    assert len(set(ids)) == len(ids)
    assert {"experiment-figure", "experiment-000-fig-3-figure-4"} <= set(ids)
    assert sections[1].title == "Fig. 3 (b): partly reproduced at a smaller scale"
    few = rows[::8]
    for row in few:  # some presets do not measure the bound
        del row["bound.generalization"]
    assert [each.experiment.name for each in judge(study, few)] == ["000-table-3", "000-fig-4"]


def test_a_figure_whose_measure_was_not_recorded_is_not_shown_at_that_scale():
    presets = {
        name: [each.preset for each in records.load(RESULTS, name)]
        for name in ("000-table-3", "000-fig-3", "000-fig-4")
    }
    assert presets["000-table-3"] == presets["000-fig-4"]
    assert presets["000-table-3"] == ["h200-imagenet", "h200-cifar100", "h200"]
    assert presets["000-fig-3"] == ["h200"]  # the others measure the head alone, without the bound


def test_tables_leave_out_what_was_not_measured():
    [found] = [
        each for each in records.load(RESULTS, "000-table-3") if each.preset == "h200-imagenet"
    ]
    outcome = find("000-table-3").analyse(found.rows)
    for table in (outcome.table, *outcome.more[:-1]):
        assert {row[0] for row in table.rows} == {"head.kappa", "head.trace", "norms.weight[head]"}
