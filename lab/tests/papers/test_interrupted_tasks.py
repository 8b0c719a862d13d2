"""A task that trains goes on where it was interrupted, to the same bits."""

import dataclasses
import math

import pytest

from population.tiny_study import lasting
from spiritlevel_lab import Store, Study
from spiritlevel_lab.papers.paper_004 import table
from spiritlevel_lab.population.executors import local
from spiritlevel_lab.population.runs import training_snapshots
from spiritlevel_lab.population.runs.running import run_one
from spiritlevel_lab.population.runs.training_snapshots import UNFINISHED

TRAINING = {"lr": 0.1, "momentum": 0.9, "batch_size": 20, "epochs": 3}
FOLLOWED = {"measures": ["head.kappa"], "measure_every": 1}
HALF = {"data": {"name": "digits", "samples": 60, "validation": 20}}
# By task: its arguments, what else its study says, and the epochs of all of its trainings.
TASKS = {
    "tasks_000_dynamics": ({}, FOLLOWED, 3),
    "tasks_000_stopping": ({"patience": 4}, FOLLOWED | HALF, 3),
    "tasks_000_transfer": (
        {"pretrain": "digits", "pretrain_samples": 60, "pretrain_epochs": 2},
        FOLLOWED | {"model": {"name": "resnet18", "width": 1, "channels": 1}},
        2 + 3 * 3,
    ),
    "tasks_001_noise_finetuning": ({"standard": 0.2, "fitted": 1.0}, {}, 3),
    "tasks_001_points": ({"points": 4}, {}, 3),
    "tasks_scaling": ({}, {}, 3),
    "tasks_003_networks": ({}, {"measures": ["scaled.trace", "softmax.gini"]}, 3),
    "tasks_flatness_penalty": ({"weight": 0.1, "every": 2}, {}, 3),
}


def study(name):
    arguments, changes, _ = TASKS[name]
    fields = {
        "model": {"name": "mlp", "hidden": [6]},
        "data": {"name": "digits", "samples": 60},
        "training": TRAINING,
        "measures": ["head.trace"],
        "measure_options": {"samples": 40},
    }
    return Study("small", task={"name": name} | arguments, **(fields | changes))


@pytest.fixture(autouse=True)
def after_every_epoch(monkeypatch):
    """A snapshot after every epoch; and steps of paper 004 take no time, which would differ."""
    monkeypatch.setattr(training_snapshots, "EVERY", 0.0)
    monkeypatch.setattr(training_snapshots, "SHARE", math.inf)
    monkeypatch.setattr(table, "clock", lambda on: 0.0)


def told(run, stop, **given):
    """The epochs that are told of, until Ctrl-C comes after so many of them."""
    epochs = []

    def on_epoch(done, most):
        epochs.append(done)
        if len(epochs) == stop:
            raise KeyboardInterrupt

    if stop is None:
        return epochs, run(on_epoch=on_epoch, **given)
    with pytest.raises(KeyboardInterrupt):
        run(on_epoch=on_epoch, **given)
    return epochs, None


@pytest.mark.parametrize("name", TASKS)
def test_no_epoch_is_trained_twice_and_the_bits_are_the_same(name, tmp_path):
    [settings] = study(name).runs()

    def run(**given):
        return run_one(settings, **given)

    every, whole = told(run, None)
    if name != "tasks_001_noise_finetuning":  # which ends by accuracy
        assert len(every) == TASKS[name][2]
    assert whole.error is None
    assert whole.epochs
    # The epoch that ends with Ctrl-C is lost, all before it are not: in the first training, and in
    # the last one.
    for place, stop in enumerate((2, len(every))):
        (tmp_path / str(place)).mkdir()
        folder = tmp_path / str(place) / UNFINISHED
        before, _ = told(run, stop, unfinished=folder)
        after, found = told(run, None, unfinished=folder)
        assert before == every[:stop]
        assert after == every[stop - 1 :]
        assert dataclasses.replace(found, seconds=0.0) == dataclasses.replace(whole, seconds=0.0)


@pytest.mark.parametrize("name", ["tasks_000_transfer", "tasks_001_points"])
def test_a_store_goes_on_and_keeps_nothing_of_it(name, tmp_path):
    with Store.create(tmp_path / "whole", study(name)) as store:
        local.run_here(store)
    with Store.create(tmp_path / "cut", study(name)) as store:

        def run(on_epoch):
            local.run_here(store, on_epoch=on_epoch)

        every = TASKS[name][2]
        told(run, every)  # and one for the start of the run
        files = sorted(path.name for path in (tmp_path / "cut" / UNFINISHED).iterdir())
        assert len(files) == (4 if name == "tasks_000_transfer" else 1)
        after, _ = told(run, None)
        assert len(after) == 1 + every - (every - 2)
        assert not list((tmp_path / "cut" / UNFINISHED).iterdir())
    assert lasting(tmp_path / "cut") == lasting(tmp_path / "whole")


def test_short_trainings_are_not_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(training_snapshots, "EVERY", 60.0)
    [settings] = study("tasks_000_transfer").runs()
    folder = tmp_path / UNFINISHED
    told(lambda **given: run_one(settings, **given), 9, unfinished=folder)
    assert not folder.exists()
