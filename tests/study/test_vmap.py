"""Networks trained together are the networks trained one after another."""

import math

import pytest
import torch
from safetensors.torch import load

from spiritlevel.models import build
from spiritlevel.study import Store, execute, stacked
from spiritlevel.study.running import run_one
from tiny_study import lasting, tiny

SMALL = {"name": "mlp", "hidden": [6, 5]}


def training(**changes) -> dict:
    return {"epochs": 3, "batch_size": 16, "dtype": "float64"} | changes


def both_ways(study, tmp_path):
    """Results one after another, and rows and weights of the store that vmap filled."""
    alone = {run.id: run_one(run) for run in study.runs()}
    with Store.create(tmp_path, study) as store:
        counts = execute(store, executor="vmap")
        assert counts.done == counts.total
        how = {m["trained"] for m in store.machines().values()}
        return alone, store.rows("epochs"), store.rows("measurements"), lasting(tmp_path), how


def assert_same(study, tmp_path, *, rtol: float, expect=frozenset({"together"})):
    alone, epochs, measurements, kept, how = both_ways(study, tmp_path)
    assert how == expect
    for run, weights in zip(kept["runs"], kept["weights"], strict=True):
        result = alone[run["id"]]
        assert run["outcome"] == result.outcome
        want, have = load(result.checkpoint), load(weights)
        assert want.keys() == have.keys()
        for name in want:
            torch.testing.assert_close(have[name], want[name], rtol=rtol, atol=rtol)
        rows = [row for row in epochs if row["run"] == run["id"]]
        assert len(rows) == len(result.epochs)
        for row, epoch in zip(rows, result.epochs, strict=True):
            for name in ("epoch", "train_loss", "train_accuracy", "test_loss", "test_accuracy"):
                assert math.isclose(row[name], getattr(epoch, name), rel_tol=rtol)
        rows = [row for row in measurements if row["run"] == run["id"]]
        wanted = {(m.measure, m.layer): m.value for m in result.measurements}
        assert wanted.keys() == {(row["measure"], row["layer"]) for row in rows}
        for row in rows:
            value = wanted[row["measure"], row["layer"]]
            assert math.isclose(row["value"], value, rel_tol=10 * rtol)


@pytest.mark.parametrize(
    ("fixed", "grid"),
    [
        ({"optimizer": "sgd"}, {"momentum": [0.0, 0.9], "weight_decay": [0.0, 0.1]}),
        ({"optimizer": "sgd"}, {"lr": [0.3, 0.01]}),
        ({"optimizer": "adam"}, {"lr": [0.01, 0.001], "weight_decay": [0.0, 0.1]}),
        ({"optimizer": "adamw"}, {"lr": [0.01, 0.001], "weight_decay": [0.0, 0.1]}),
    ],
    ids=["sgd", "sgd-plain", "adam", "adamw"],
)
def test_members_equal_runs_alone_in_float64(tmp_path, fixed, grid):
    # 60 samples in batches of 16: the last batch is smaller.
    study = tiny(model=SMALL, training=training(**fixed), grid=grid, seeds=2)
    assert_same(study, tmp_path, rtol=1e-9)


def test_float32_agrees_to_its_own_precision(tmp_path):
    study = tiny(model=SMALL, training=training(dtype="float32"), seeds=2)
    assert_same(study, tmp_path, rtol=1e-4)


def test_members_may_end_at_different_epochs(tmp_path):
    study = tiny(
        model=SMALL,
        training=training(lr=0.3, epochs=30),
        grid={"epochs": [1, 4, 30], "lr": [0.3, 0.05]},
        stop={"train_accuracy": 0.6},
        seeds=2,
    )
    assert_same(study, tmp_path, rtol=1e-9)
    with Store.open(tmp_path) as store:
        rows = store.rows("runs")
    assert {row["outcome"] for row in rows} == {"epochs", "train_accuracy"}


def test_each_member_has_its_own_wrong_labels(tmp_path):
    study = tiny(
        model=SMALL,
        training=training(),
        grid={"interventions.label_noise": [0.0, 0.5], "epochs": [1, 3]},
        seeds=2,
    )
    assert_same(study, tmp_path, rtol=1e-9)


def test_convolutions_train_together(tmp_path):
    study = tiny(model={"name": "digits_cnn", "width": 2}, training=training(), seeds=2)
    assert_same(study, tmp_path, rtol=1e-9)


def test_a_member_that_diverges_leaves_the_others_alone(tmp_path):
    study = tiny(model=SMALL, training=training(), grid={"lr": [1e200, 0.1]}, seeds=2)
    with Store.create(tmp_path, study) as store:
        execute(store, executor="vmap")
        outcomes = [row["outcome"] for row in store.rows("runs")]
        last = {row["run"]: row for row in store.rows("epochs")}
        measured = {row["run"] for row in store.rows("measurements")}
    assert outcomes == ["diverged", "diverged", "epochs", "epochs"]
    healthy = [run for run in study.runs() if run.training["lr"] == 0.1]
    for run in healthy:
        want = run_one(run).epochs[-1].train_loss
        assert math.isclose(last[run.id]["train_loss"], want, rel_tol=1e-9)
    assert measured == {run.id for run in healthy}


NETS = """
from torch import nn
def dropout(): return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10))
def norm(): return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))
"""


@pytest.mark.parametrize("factory", ["dropout", "norm"])
def test_networks_that_cannot_be_stacked_train_alone(tmp_path, monkeypatch, factory):
    (tmp_path / "vmap_nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    study = tiny(model=f"vmap_nets:{factory}", training=training(), grid={}, seeds=2)
    assert_same(study, tmp_path / "study", rtol=1e-12, expect={"alone"})


def test_changes_of_single_batches_train_alone(tmp_path):
    study = tiny(model=SMALL, training=training(), interventions={"input_noise": 0.1}, seeds=1)
    assert_same(study, tmp_path, rtol=1e-12, expect={"alone"})


def test_the_reason_for_training_alone_names_the_layer():
    run = tiny().runs()[0]
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    assert stacked.refusal(run, net) == "1 (BatchNorm1d) keeps running statistics"
    assert stacked.refusal(run, build("mlp")) == ""


def test_memory_bounds_the_number_of_members():
    run = tiny().runs()[0]
    net = build("mlp", hidden=4)
    # 310 weights of 4 bytes, 6 copies; a sample keeps 64 inputs and 64 + 4 + 4 + 10 outputs.
    each = 6 * 310 * 4 + 3 * 20 * (64 + 82) * 4
    device = torch.device("cpu")
    assert stacked.members_that_fit(run, net, device, memory=each * 7) == 7
    assert stacked.members_that_fit(run, net, device, memory=1) == 1


def test_chunks_of_members_give_the_same_results(tmp_path, monkeypatch):
    monkeypatch.setattr(stacked, "MEMORY", 200_000)  # two members at a time
    study = tiny(model=SMALL, training=training(), seeds=3)
    assert_same(study, tmp_path, rtol=1e-9)
