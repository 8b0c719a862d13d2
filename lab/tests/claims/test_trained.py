"""Networks that are not trained decide nothing, and the page says how many there are and why."""

import dataclasses
import math

import pytest

from publishing.recorded import load
from spiritlevel.records.content import Table
from spiritlevel_lab.claims.experiment import Experiment, Outcome
from spiritlevel_lab.claims.findings import VERDICTS, above, verdict
from spiritlevel_lab.claims.numbers import mean
from spiritlevel_lab.claims.trained import Limit, NotAsked, TrainedWhen
from spiritlevel_lab.papers import find, names
from spiritlevel_lab.papers.judgement import TITLE, judged


def analyse(rows):
    number = mean(row["m"] for row in rows)
    findings = [above("m is above 0", number)]
    return Outcome(Table(("n",), [[len(rows)]]), findings, verdict(findings), "m", why="because")


def experiment(trained):
    texts = dict.fromkeys(("name", "title", "source", "claim", "rule", "set_up"), "")
    return Experiment(
        **texts,
        analysis=lambda _, rows: analyse(rows),
        trained=trained,
        columns=(),
        scaled_down={},
        measures=(),
    )


def rows_with(losses, **more):
    return [{"train_loss": loss, "m": 1 + i % 3, **more} for i, loss in enumerate(losses)]


SMALL_LOSS = TrainedWhen((Limit("train_loss", at_most=0.5),), "By hand.")


@pytest.mark.parametrize(
    ("limit", "values", "met"),
    [
        (Limit("train_loss", at_most=0.5), [0.5, 0.51, math.nan, None, math.inf], [0]),
        (Limit("train_accuracy", at_least=0.9), [0.9, 0.89, math.nan, None, 1.0], [0, 4]),
        (
            Limit("outcome", reached=("train_loss", "running_loss")),
            ["train_loss", "epochs", None, "running_loss"],
            [0, 3],
        ),
    ],
)
def test_limits(limit, values, met):
    assert [i for i, v in enumerate(values) if limit.is_met({limit.column: v})] == met
    assert not limit.is_met({})


def test_untrained_networks_are_left_out_and_counted():
    rows = [*rows_with([0.1] * 4), *rows_with([2.3, math.nan]), {"m": -99, "outcome": "diverged"}]
    outcome = judged(experiment(SMALL_LOSS), rows)
    assert outcome.agrees == "yes"
    assert outcome.table.rows == [[4]]
    assert outcome.left_out.startswith(
        "3 runs, of which 1 diverged, are left out: trained means a training loss of at most 0.5"
    )
    assert "Trained are 4 of 7." in outcome.left_out
    (everyone,) = outcome.more
    assert (everyone.title, everyone.rows) == (TITLE, [[6]])  # the diverged one has no numbers


def test_too_few_trained_networks_are_never_judged():
    rows = [*rows_with([0.1] * 2), *rows_with([2.3] * 20)]
    outcome = judged(experiment(SMALL_LOSS), rows)
    assert analyse(rows).agrees == "yes"
    assert VERDICTS[outcome.agrees] == "not judged"
    assert [finding.result for finding in outcome.findings] == ["not judged"]
    assert outcome.met == "2 of 22 networks"
    assert "trained are 2 of 22, where half of them and 3 are needed" in outcome.conclusion
    assert "Trained means a training loss of at most 0.5" in outcome.left_out
    assert outcome.why == ""  # an explanation of a result that there is not


def test_every_group_needs_trained_networks():
    by_group = TrainedWhen(SMALL_LOSS.limits, "", by="variant")
    rows = [*rows_with([0.1] * 9, variant="a"), *rows_with([0.1, 0.1, 2.3], variant="b")]
    outcome = judged(experiment(by_group), rows)
    assert outcome.agrees == "untrained"
    assert outcome.met == "2 of 3 networks (variant b)"
    assert "9 of 9 (variant a), 2 of 3 (variant b), where half" in outcome.conclusion
    assert "and 3 in each group are needed" in outcome.conclusion
    assert judged(experiment(by_group), rows[:9]).agrees == "yes"


@pytest.mark.parametrize(("good", "bad", "agrees"), [(10, 10, "yes"), (10, 11, "untrained")])
def test_where_most_networks_miss_the_criterion_there_is_no_verdict(good, bad, agrees):
    rows = [*rows_with([0.1] * good), *rows_with([2.3] * bad)]
    assert judged(experiment(SMALL_LOSS), rows).agrees == agrees


def test_a_setting_that_mostly_misses_the_criterion_is_left_out():
    """What is left of it is a selection; and there must be settings enough."""
    rows = [row for i in range(4) for row in rows_with([0.1] * 4, setting=i)]
    rows += [*rows_with([0.1] * 2 + [2.3] * 2, setting=4), *rows_with([0.1] + [2.3] * 2, setting=5)]
    for settings, agrees in ((5, "yes"), (6, "untrained")):
        halves = dataclasses.replace(SMALL_LOSS, half_of="setting", settings=settings)
        assert [row["setting"] for row in halves.split(rows).judged].count(4) == 2
        assert len(halves.split(rows).judged) == 18
        outcome = judged(experiment(halves), rows)
        assert outcome.agrees == agrees
        assert "settings of which half of the networks come to it (setting)" in outcome.left_out


def test_a_preset_may_have_a_criterion_of_its_own():
    here = find("003-fig-3")
    own = here.at("h200-settings", comparable=True).trained
    assert (own.half_of, own.settings, own.needed) == ("variant", 8, 10)
    assert own.limits[0].reached == ("train_loss",)
    assert here.at("h200", comparable=True).trained is here.at(None, comparable=True).trained


def test_few_networks_that_are_all_trained_are_judged():
    outcome = judged(experiment(SMALL_LOSS), rows_with([0.1, 0.2]))
    assert (outcome.agrees, outcome.left_out, list(outcome.more)) == ("undecided", "", [])


def test_only_the_networks_that_are_asked_must_be_trained():
    asked = TrainedWhen(SMALL_LOSS.limits, "", asked=lambda row: row["noise"] == 0, of="those")
    strong = rows_with([2.3] * 5, noise=1)
    assert judged(experiment(asked), [*rows_with([0.1] * 3, noise=0), *strong]).left_out == ""
    assert judged(experiment(asked), [*rows_with([2.3] * 3, noise=0), *strong]).agrees == (
        "untrained"
    )


def test_a_claim_about_no_networks_is_judged_by_all_runs():
    free = experiment(NotAsked("Nothing is trained."))
    assert judged(free, rows_with([2.3] * 5)).agrees == "yes"


@pytest.mark.parametrize("name", names())
def test_each_experiment_asks_for_columns_that_it_records(name):
    trained = find(name).trained
    if isinstance(trained, NotAsked):
        assert trained.why
        return
    assert {limit.column for limit in trained.limits} <= set(find(name).columns)
    assert not trained.by or trained.by in find(name).columns
    assert ", asked of " in str(trained)


UNTRAINED = ("000-table-5", "000-table-6", "000-fig-6", "001-fig-6", "000-fig-7", "004-table")


@pytest.mark.parametrize("name", UNTRAINED)
def test_recorded_networks_that_never_learned_are_not_judged(name, request):
    """Losses of chance and of 368, training accuracies of 0.13 to 0.6: no minima."""
    *_, record = load(request.config.rootpath / "experiments/results", name)  # the smallest
    outcome = judged(find(name), record.rows)
    assert outcome.agrees == "untrained"
    assert {finding.result for finding in outcome.findings} == {"not judged"}
