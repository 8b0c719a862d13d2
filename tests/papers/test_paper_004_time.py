"""Methods at equal time: what counts as time, and what is judged."""

import itertools
import math

import numpy
import pytest
import torch
from scipy import stats

import spiritlevel as sl
from spiritlevel.papers import find
from spiritlevel.papers.judging.judged import judged
from spiritlevel.papers.paper_004 import tasks_equal_time
from spiritlevel.study import control
from spiritlevel.study import find as find_study
from spiritlevel.study.runs.running import run_one

METHODS = find("004-time").recipe["groups"]["names"]


def rows(accuracy, flatness, *, seeds=5):
    """`accuracy` and `flatness` of the paper's penalty; all others are like plain training."""
    random = numpy.random.default_rng(0)
    found = []
    for method in METHODS:
        for seed in range(seeds):
            own = (accuracy, flatness) if method == METHODS[1] else (0.3, 10.0)
            row = {"outcome": "epochs", "variant": method, "seed": seed, "train_loss": 2.0}
            row |= {"test_accuracy": own[0] + 0.001 * random.normal(), "gap": 0.5}
            row |= {"head.kappa": own[1] * numpy.exp(0.01 * random.normal()), "task.epochs": 3.0}
            found.append(row | {"relative.kappa": 1.0, "task.training_seconds": 8.0})
    return found


@pytest.mark.parametrize(
    ("accuracy", "flatness", "parts", "agrees"),
    [
        (0.31, 5.0, ["held", "held"], "yes"),
        (0.2, 5.0, ["not held", "held"], "partly"),
        (0.2, 20.0, ["not held", "not held"], "no"),
    ],
)
def test_a_penalty_must_keep_the_accuracy_and_flatten_in_the_same_time(
    accuracy, flatness, parts, agrees
):
    given = rows(accuracy, flatness)
    outcome = judged(find("004-time"), given)
    assert ([each.result for each in outcome.findings], outcome.agrees) == (parts, agrees)
    own = {name: [r["test_accuracy"] for r in given if r["variant"] == name] for name in METHODS}
    changes = numpy.subtract(own[METHODS[1]], own["plain"])
    low, high = stats.ttest_1samp(changes, 0.0).confidence_interval()
    number = outcome.findings[0].number
    assert (number.value, number.low, number.high) == pytest.approx((changes.mean(), low, high))


def test_networks_that_learn_too_little_without_a_penalty_are_not_judged():
    poor = [row | {"test_accuracy": 0.1} for row in rows(0.3, 5.0)]
    assert judged(find("004-time"), poor).agrees == "untrained"


def test_training_ends_with_the_time_or_the_last_epoch():
    study = find_study("004-time").with_preset("quick").with_values({"seeds": 1})
    *_, asam = study.with_values({"task.seconds": 0.02}).runs()
    values = {row.measure: row.value for row in run_one(asam).measurements if not row.layer}
    assert values["task.training_seconds"] >= 0.02
    steps = round(19 * values["task.epochs"], 6)  # 19 to an epoch
    assert steps % 10 == 0  # the clock is looked at after every tenth
    assert values["head.kappa"] > 0
    few = study.with_values({"task.seconds": 1000.0, "epochs": 2}).runs()[0]
    found = {row.measure: row.value for row in run_one(few).measurements}
    assert found["task.epochs"] == 2.0


def test_the_rate_falls_with_the_time_that_is_left(monkeypatch):
    ticks, rates = itertools.count(), []
    monkeypatch.setattr(tasks_equal_time, "clock", lambda on: next(ticks) / 10)  # a tenth a look
    monkeypatch.setattr(
        torch.optim.Optimizer,
        "zero_grad",
        lambda self, **_: rates.append(self.param_groups[0]["lr"]),
    )
    changed = {"seeds": 1, "task.seconds": 0.4, "schedule": "cosine", "lr": 1.0}
    _, penalized, *_ = find_study("004-time").with_preset("quick").with_values(changed).runs()
    run_one(penalized)
    expected = [0.5 * (1 + math.cos(math.pi * share)) for share in (0, 0.25, 0.5, 0.75)]
    assert len(rates) == 40  # the clock is looked at after every tenth
    assert rates[::10] == pytest.approx(expected, abs=1e-3)  # the schedule goes on in between


@pytest.mark.parametrize("seconds", [0.0, -1])
def test_there_must_be_some_time(seconds):
    with pytest.raises(
        sl.SpiritlevelError, match=rf"task\.seconds must be above 0\. Got {seconds}"
    ):
        control.check(
            find_study("004-time").with_preset("quick").with_values({"task.seconds": seconds})
        )


def test_a_network_without_a_flatness_is_not_drawn():
    given = rows(0.31, 5.0)
    given[0]["head.kappa"] = None
    plain, *_ = find("004-time").analyse(given).figure.series
    assert len(plain.x) == 4
