"""A network that trains alone goes on from its last snapshot, to the same bits."""

import dataclasses
import math

import pytest
import torch
from torch import nn

from population.tiny_study import lasting, tiny
from spiritlevel.inputs.models import mlp, registry
from spiritlevel_lab import Store, execute
from spiritlevel_lab.population.executors import local
from spiritlevel_lab.population.runs import running, training_snapshots
from spiritlevel_lab.population.runs.running import run_one
from spiritlevel_lab.population.runs.training_snapshots import UNFINISHED, packed, unpacked

TRAINING = {"epochs": 5, "batch_size": 16, "momentum": 0.9}
CUT = 3  # the epoch that is lost
IMAGES = {"name": "digits", "samples": 40}
STEADY = {"rule": "flatness", "patience": 3, "measure": "head.kappa"}
NORMS = {"name": "resnet18", "width": 2, "channels": 1}


class Unseen(nn.Module):
    """Draws random numbers, and has a buffer that no checkpoint holds."""

    def __init__(self):
        super().__init__()
        self.network = mlp(hidden=4)
        self.register_buffer("batches", torch.zeros(()), persistent=False)

    def forward(self, x):
        if self.training:
            self.batches += 1
        return self.network(nn.functional.dropout(x, 0.2, self.training) * self.batches)


def unseen():
    return Unseen()


def counting():
    return Unseen()


def only(**changes):
    fields = {"training": TRAINING, "grid": {}, "seeds": 1, "measures": ["head.trace"]}
    [settings] = tiny(**(fields | changes)).runs()
    return settings


@pytest.fixture(autouse=True)
def after_every_epoch(monkeypatch):
    monkeypatch.setattr(training_snapshots, "EVERY", 0.0)
    monkeypatch.setattr(training_snapshots, "SHARE", math.inf)
    for factory, module in ((unseen, registry.__name__), (counting, "another_package")):
        monkeypatch.setattr(factory, "__module__", module)
        monkeypatch.setitem(registry._registered, factory.__name__, factory)


def until(stop, epochs):
    """Notes the epochs, and Ctrl-C at the end of one."""

    def on_epoch(epoch, most):
        epochs.append(epoch)
        if epoch == stop:
            raise KeyboardInterrupt

    return on_epoch


def cut(settings, folder):
    """The result of a run that was interrupted, and the epochs before and after that."""
    before, after = [], []
    with pytest.raises(KeyboardInterrupt):
        run_one(settings, unfinished=folder, on_epoch=until(CUT, before))
    return run_one(settings, unfinished=folder, on_epoch=until(None, after)), before, after


def in_bits(result):
    return dataclasses.replace(result, seconds=0.0)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"training": {"schedule": "cosine", "warmup": 1, "clip": 0.5}},
        {"training": {"optimizer": "adam", "weight_decay": 0.1}},
        {"training": {"optimizer": "adamw"}},
        {"training": {"optimizer": "rmsprop"}},
        {"training": {"method": "sam", "every": 2}},
        {"training": {"method": "asam"}},
        {"training": {"method": "noise_sam", "draws": 2, "rho": 0.5}},
        {"training": {"penalty": {"name": "trace_squared", "weight": 0.1}, "every": 2}},
        {"training": {"norm_control": True}},
        {"training": {"freeze": "backbone"}},
        {"training": {"lr_backbone": 0.02, "schedule": "step", "milestones": [2, 4]}},
        {"training": {"evaluate_every": 2}},
        {"training": {"dtype": "float64", "autocast": "bfloat16"}},
        {"model": NORMS, "data": IMAGES},
        {"model": NORMS, "data": IMAGES, "interventions": {"crop_flip": 1, "input_noise": 0.1}},
        {"interventions": {"mixup": 0.5, "batch_cycles": 2}},
        {"model": {"name": "unseen"}},
        {"measure_every": 2, "epoch_measures": ["curvature.trace"]},
        {"data": {"name": "digits", "samples": 60, "validation": 20}, "stop": {"rule": "loss"}},
        {"stop": STEADY, "measure_every": 1, "training": {"lr": 1e-6}},
        {"stop": {"running_loss": 1.5, "gradient_norm": 1e-9}},
    ],
    ids=str,
)
def test_the_rest_is_trained_and_the_bits_are_the_same(changes, tmp_path):
    training = TRAINING | changes.pop("training", {})
    settings = only(**changes, training=training)
    whole = run_one(settings)
    found, before, after = cut(settings, tmp_path / UNFINISHED)
    assert before == [1, 2, 3]
    assert after == list(range(CUT, whole.epochs[-1].epoch + 1))  # not from the start
    assert whole.error is None
    if settings.stop.rule == "flatness":
        assert whole.outcome == "flatness_rule"  # by what was seen before and after
    assert in_bits(found) == in_bits(whole)
    assert found.seconds > 0


def test_what_was_interrupted_while_it_was_measured_is_not_trained_again(tmp_path, monkeypatch):
    settings, epochs = only(), []
    with monkeypatch.context() as patch:
        patch.setattr(running, "measure_network", lambda *_: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            run_one(settings, unfinished=tmp_path / UNFINISHED)
    found = run_one(settings, unfinished=tmp_path / UNFINISHED, on_epoch=until(None, epochs))
    assert epochs == []
    assert in_bits(found) == in_bits(run_one(settings))


def test_a_training_is_saved_once_more_when_it_ends(tmp_path, monkeypatch):
    """Whatever comes after it is interrupted, even if it was saved a moment before."""
    monkeypatch.setattr(training_snapshots, "EVERY", 5.0)
    monkeypatch.setattr(training_snapshots, "SHARE", 1.0)
    now, again = [0.0], []
    monkeypatch.setattr(training_snapshots.time, "monotonic", lambda: now[0])

    def two_seconds(epoch, most):
        now[0] += 2.0

    settings = only(training=TRAINING | {"epochs": 4})  # saved after the third
    with monkeypatch.context() as patch:
        patch.setattr(running, "measure_network", lambda *_: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            run_one(settings, unfinished=tmp_path / UNFINISHED, on_epoch=two_seconds)
    run_one(settings, unfinished=tmp_path / UNFINISHED, on_epoch=until(None, again))
    assert again == []


def test_a_study_goes_on_and_leaves_no_files(tmp_path):
    study = tiny(training=TRAINING, seeds=1)
    with Store.create(tmp_path / "whole", study) as store:
        execute(store)
    epochs = []
    with Store.create(tmp_path / "cut", study) as store:
        with pytest.raises(KeyboardInterrupt):
            local.run_here(store, on_epoch=until(CUT, epochs))
        assert store.counts().pending == 2
        [file] = (tmp_path / "cut" / UNFINISHED).iterdir()
        saved = unpacked(file)
        assert saved["epoch"] == CUT - 1
        file.write_bytes(packed(saved | {"seconds": 600.0}))
        local.run_here(store, on_epoch=until(None, epochs))
        assert not list((tmp_path / "cut" / UNFINISHED).iterdir())
        execute(store)  # nothing is left to do
        times = sorted(row["seconds"] for row in store.rows("runs"))
    assert epochs == [0, 1, 2, 3, 0, 3, 4, 5, 0, 1, 2, 3, 4, 5]
    assert times[0] < 60 < 600 < times[1] < 660  # with the time before the interruption
    assert not (tmp_path / "cut" / UNFINISHED).exists()
    assert lasting(tmp_path / "cut") == lasting(tmp_path / "whole")


def test_a_run_that_fails_leaves_no_file(tmp_path, monkeypatch):
    def fail(epoch, most):
        if epoch == CUT:
            raise RuntimeError("the disk was away")

    with Store.create(tmp_path, tiny(training=TRAINING, grid={}, seeds=1)) as store:
        local.run_here(store, on_epoch=fail)
        assert store.counts().failed == 1
        assert not list((tmp_path / UNFINISHED).iterdir())


@pytest.mark.parametrize("name", ["counting", "my_networks:make"])
def test_networks_of_others_start_anew(name, tmp_path, monkeypatch):
    """They may count in Python what no snapshot holds."""
    monkeypatch.chdir(tmp_path)
    lines = "from spiritlevel.inputs.models import mlp", "make = lambda: mlp(hidden=4)"
    (tmp_path / "my_networks.py").write_text("\n".join(lines))
    _, _, after = cut(only(model={"name": name}), tmp_path / UNFINISHED)
    assert after == [1, 2, 3, 4, 5]
    assert not (tmp_path / UNFINISHED).exists()


@pytest.mark.parametrize("change", ["cut short", "machine", "start", "code", "flipped bit"])
def test_what_does_not_fit_is_not_used(change, tmp_path, monkeypatch):
    settings, folder, epochs = only(), tmp_path / UNFINISHED, []
    with pytest.raises(KeyboardInterrupt):
        run_one(settings, unfinished=folder, on_epoch=until(CUT, []))
    [file] = folder.iterdir()
    if change == "cut short":
        file.write_bytes(file.read_bytes()[:-100])
    elif change == "code":
        file.write_bytes(packed(unpacked(file) | {"epoch": pytest.fail}))
    elif change == "flipped bit":  # of a weight, which torch would read
        content = file.read_bytes()
        weight = next(iter(unpacked(file)["state"]["network"].values()))
        place = content.index(weight.numpy().tobytes())
        content = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        file.write_bytes(content)
    else:
        saved = unpacked(file)
        place = ["id", "machine", "start"].index(change)
        saved["trained"][place] = saved["trained"][place].replace("a", "b")
        file.write_bytes(packed(saved))
    found = run_one(settings, unfinished=folder, on_epoch=until(None, epochs))
    assert epochs == [1, 2, 3, 4, 5]
    assert in_bits(found) == in_bits(run_one(settings))
