"""Networks trained together are the networks trained one after another."""

import math

import pytest
import torch
from safetensors.torch import load

import spiritlevel as sl
from population.tiny_study import lasting, tiny
from spiritlevel.inputs.models import build
from spiritlevel_lab import Store, execute
from spiritlevel_lab.population.runs import stacked
from spiritlevel_lab.population.runs.running import run_one

pytestmark = pytest.mark.sampled(4)  # the others at night

SMALL = {"name": "mlp", "hidden": [6, 5]}


def training(**changes) -> dict:
    return {"epochs": 3, "batch_size": 16, "dtype": "float64"} | changes


def assert_same(study, tmp_path, *, rtol: float, expect=frozenset({"together"}), workers=1):
    """What vmap leaves in a store is what comes of training one after another."""
    alone = {run.id: run_one(run) for run in study.runs()}
    with Store.create(tmp_path, study) as store:
        counts = execute(store, executor="vmap", workers=workers)
        assert counts.done == counts.total
        assert {m["trained"] for m in store.machines().values()} == expect
    kept = lasting(tmp_path)
    for run, weights in zip(kept["runs"], kept["weights"], strict=True):
        result = alone[run["id"]]
        assert run["outcome"] == result.outcome
        want, have = load(result.checkpoint), load(weights)
        assert want.keys() == have.keys()
        for name in want:
            torch.testing.assert_close(have[name], want[name], rtol=rtol, atol=rtol)
        assert_rows(kept["epochs"], run["id"], result.epochs, rtol=rtol)
        for table in ("measurements", "epoch_measurements"):
            assert_rows(kept[table], run["id"], getattr(result, table), rtol=10 * rtol)


def assert_rows(rows, run: str, wanted, *, rtol: float) -> None:
    def key(row: dict) -> list:
        return [row.get(name) for name in ("epoch", "measure", "layer")]

    found = sorted((row for row in rows if row["run"] == run), key=key)
    wanted = sorted(map(vars, wanted), key=key)
    assert [key(row) for row in found] == [key(row) for row in wanted]
    for row, want in zip(found, wanted, strict=True):
        for name, value in want.items():
            if isinstance(value, float) and name not in ("stderr", "data_stderr"):
                assert math.isclose(row[name], value, rel_tol=rtol)
            elif value is None:
                assert row[name] is None


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


def test_members_are_evaluated_each_at_its_own_epochs(tmp_path):
    study = tiny(model=SMALL, training=training(epochs=3), grid={"evaluate_every": [1, 2]}, seeds=2)
    assert_same(study, tmp_path, rtol=1e-9)


@pytest.mark.parametrize(
    ("fixed", "grid"),
    [
        ({"schedule": "cosine", "warmup": 1, "momentum": 0.9}, {"epochs": [2, 4]}),
        ({"schedule": "cosine"}, {"lr": [0.3, 0.05], "epochs": [2, 4]}),
        ({"optimizer": "adamw", "weight_decay": 0.1}, {"schedule": ["constant", "step"]}),
    ],
    ids=["cosine", "rates", "step"],
)
def test_each_member_follows_its_own_schedule(tmp_path, fixed, grid):
    study = tiny(model=SMALL, training=training(**fixed), grid=grid, seeds=2)
    assert_same(study, tmp_path, rtol=1e-9)


def test_batches_that_are_cycled_and_leaking_inputs_train_together(tmp_path):
    interventions = {"batch_cycles": 3, "leakage": "class", "leakage_size": 2}
    fixed = training(schedule="cosine")
    study = tiny(model=SMALL, training=fixed, interventions=interventions, seeds=1)
    assert_same(study, tmp_path, rtol=1e-9)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_weights_that_are_never_used_do_not_decay(tmp_path, monkeypatch, optimizer):
    (tmp_path / f"spare_{optimizer}.py").write_text(
        "import torch\nfrom torch import nn\nclass Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.fc, self.head = nn.Linear(64, 5), nn.Linear(5, 10)\n"
        "        self.spare = nn.Linear(5, 4)\n"
        "        self.scale = nn.Parameter(torch.tensor(1.5))\n"
        "    def forward(self, x):\n"
        "        return self.head(torch.relu(self.fc(x.flatten(1)) * self.scale))\n"
    )
    monkeypatch.chdir(tmp_path)
    fixed = training(optimizer=optimizer, weight_decay=0.1, lr=0.05)
    study = tiny(
        model=f"spare_{optimizer}:Net",
        training=fixed,
        grid={},
        seeds=2,
        measures=["norms.weight"],  # whether they are used is not asked by it
    )
    assert_same(study, tmp_path / "study", rtol=1e-9)


def test_masked_networks_train_together_each_with_its_own_mask(tmp_path):
    study = tiny(
        model={"name": "digits_cnn", "width": 4},
        training=training(epochs=2),
        grid={"interventions.mask": [0.25, 0.5]},
        seeds=2,
    )
    assert_same(study, tmp_path, rtol=1e-9)


def test_members_are_measured_and_stopped_by_their_own_rule_while_they_train(tmp_path):
    study = tiny(
        model=SMALL,
        data={"name": "digits", "samples": 60, "validation": 20},
        training=training(lr=0.5, epochs=12),
        variants={
            "loss": {"stop.rule": "loss", "stop.patience": 1},
            "trend": {"stop.rule": "trend", "stop.patience": 4, "stop.tolerance": 0.5},
        },
        grid={},
        measure_every=2,
        epoch_measures=["head.trace"],
        seeds=2,
    )
    assert_same(study, tmp_path, rtol=1e-7)
    with Store.open(tmp_path) as store:
        outcomes = {row["outcome"] for row in store.rows("runs")}
        assert {row["epoch"] % 2 for row in store.rows("epoch_measurements")} == {0}
    assert outcomes & {"loss_rule", "trend_rule"}


def test_each_member_has_its_own_wrong_labels(tmp_path):
    study = tiny(
        model=SMALL,
        data={"name": "digits", "samples": 60, "validation": 10},
        training=training(),
        grid={"interventions.label_noise": [0.0, 0.5], "epochs": [1, 3]},
        seeds=2,
    )
    assert_same(study, tmp_path, rtol=1e-9)


def test_members_share_one_copy_of_the_inputs():
    settings = tiny(training=training(epochs=1)).runs()[:3]
    first, *others = stacked.train_together(settings, "cpu").members
    assert all(member.data.x is first.data.x for member in others)


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
    healthy = [run for run in study.runs() if run.training.lr == 0.1]
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


def test_runs_of_different_batch_sizes_do_not_train_together(tmp_path):
    study = tiny(model=SMALL, training=training(), grid={"batch_size": [16, 32]}, seeds=2)
    assert len({stacked.group_key(run) for run in study.runs()}) == 2
    assert_same(study, tmp_path, rtol=1e-9)


def test_changes_of_single_batches_train_alone_beside_those_that_need_not(tmp_path):
    grid = {"interventions.input_noise": [0.0, 0.1]}
    study = tiny(model=SMALL, training=training(), grid=grid, seeds=2)
    assert_same(study, tmp_path, rtol=1e-9, expect={"alone", "together"})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"interventions": {"mixup": 0.5}}, "mixup changes each batch by itself"),
        ({"training": training(method="sam")}, "training.method looks at displaced weights"),
        ({"training": training(penalty=0.1)}, "training.penalty is computed for one network"),
        ({"training": training(norm_control=True)}, "training.norm_control sets the weights"),
        ({"training": training(freeze="backbone")}, "training.freeze trains a part"),
        (
            {"task": "spiritlevel_lab.population.runs.tasks:task_result"},
            "the task 'spiritlevel_lab.population.runs.tasks:task_result' is no training",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_study_of_which_nothing_trains_together_is_refused(tmp_path, changes, reason):
    with Store.create(tmp_path, tiny(**changes)) as store:
        with pytest.raises(sl.SpiritlevelError, match=f"none of .* 12 runs can: {reason}"):
            execute(store, executor="vmap", allow_code=True)
        assert store.counts().pending == 12


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


@pytest.mark.nightly
def test_two_processes_share_one_group(tmp_path):
    study = tiny(model=SMALL, training=training(), grid={"lr": [0.05, 0.1]}, seeds=3)
    assert_same(study, tmp_path, rtol=1e-9, workers=2)
