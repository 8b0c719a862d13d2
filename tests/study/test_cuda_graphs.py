"""Steps that are recorded as CUDA graphs are the steps asked for kernel by kernel."""

import math

import numpy
import pytest
import torch
from safetensors.torch import load

from spiritlevel.study import Store, execute
from spiritlevel.study.models.efficientnet_lite0 import CODE, WEIGHTS
from spiritlevel.study.runs import steps, training_snapshots
from spiritlevel.study.runs.faster_steps import WARM_UP, Recorded
from spiritlevel.study.runs.running import run_one
from study.tiny_study import lasting, tiny

RTOL = 1e-9  # float64: the sums of a stack are taken in another order
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


def doubled(x):
    return (2 * x,)


def test_replays_read_new_inputs_and_every_shape_has_its_own():
    call = Recorded(doubled)
    for i in range(2 * WARM_UP):
        for size in (3, 5):
            x = torch.full((size,), float(i), device="cuda")
            torch.testing.assert_close(call(x)[0], 2 * x, rtol=0, atol=0)
    assert len(call._recordings) == 2
    call.forget()
    assert not call._recordings


def test_tensors_changed_in_place_go_on_changing():
    total = torch.zeros((), device="cuda")

    def add(x):
        total.add_(x.sum())
        return (total.clone(),)

    call = Recorded(add)
    for _ in range(3 * WARM_UP):
        (found,) = call(torch.ones(4, device="cuda"))
    assert float(found) == float(total) == 12.0 * WARM_UP


def test_memory_kept_from_earlier_work_does_not_stand_in_the_way():
    def grown(x):
        return (x.repeat(64) + 1,)

    entries = 2**24  # 64 MiB; what `grown` makes has 4 GiB
    torch.cuda.empty_cache()
    most = torch.cuda.get_device_properties(0).total_memory
    if most < 20 * 2**30:
        pytest.skip("needs a GPU with 20 GiB")
    torch.cuda.set_per_process_memory_fraction(16 * 2**30 / most)
    try:
        call, x = Recorded(grown), torch.ones(entries, device="cuda")
        for _ in range(WARM_UP):
            call(x)
        kept = torch.empty(13 * 2**30, dtype=torch.uint8, device="cuda")
        del kept  # the allocator has it still
        assert float(call(x)[0].mean()) == 2.0
        assert len(call._recordings) == 1
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_what_waits_for_the_cpu_is_called_as_before():
    def waits(x):
        return (x * float(x.sum()),)

    call = Recorded(waits)
    inputs = [torch.full((2,), float(i), device="cuda") for i in range(3 * WARM_UP)]
    with pytest.warns(UserWarning, match="cannot be recorded"):
        found = [call(x)[0].tolist() for x in inputs]
    assert found == [[2.0 * i * i] * 2 for i in range(3 * WARM_UP)]
    assert not call._recordings
    again = Recorded(doubled)  # a recording that failed leaves nothing behind
    for x in inputs:
        assert torch.equal(again(x)[0], 2 * x)
    assert len(again._recordings) == 1


@pytest.fixture
def recordings(monkeypatch) -> list:
    """Those that were made, in their order."""
    record, made = Recorded._record, []

    def counted(self, inputs):
        made.append(record(self, inputs))
        return made[-1]

    monkeypatch.setattr(Recorded, "_record", counted)
    return made


@pytest.mark.parametrize(
    "training",
    [
        {"momentum": 0.9, "lr": 0.01},
        {"optimizer": "adamw", "lr": 0.01, "schedule": "cosine"},
        {"freeze": "backbone"},
        {"norm_control": True},
        {"compile": True, "autocast": "bfloat16"},
    ],
)
def test_a_recorded_run_is_the_run(training, monkeypatch, recordings):
    study = tiny(
        model={"name": "resnet18", "width": 4, "channels": 1},  # with running statistics
        training={"epochs": 2, "batch_size": 10} | training,
        grid={},
        seeds=1,
        measures=["norms.weight"],
    )
    (settings,) = study.runs()
    recorded = run_one(settings, device="cuda")
    assert len(recordings) == 1
    monkeypatch.setattr(steps, "recordable", lambda *_: False)
    plain = run_one(settings, device="cuda")
    assert [vars(row) for row in recorded.epochs] == [vars(row) for row in plain.epochs]
    want, have = load(plain.checkpoint), load(recorded.checkpoint)
    for name in want:
        assert torch.equal(want[name], have[name])


@pytest.mark.parametrize("training", [{"momentum": 0.9}, {"autocast": "bfloat16", "lr": 0.01}])
def test_a_run_that_was_interrupted_is_the_run(training, tmp_path, monkeypatch):
    monkeypatch.setattr(training_snapshots, "EVERY", 0.0)
    monkeypatch.setattr(training_snapshots, "SHARE", math.inf)
    study = tiny(
        model={"name": "resnet18", "width": 4, "channels": 1},
        training={"epochs": 4, "batch_size": 10, "optimizer": "sgd"} | training,
        grid={},
        seeds=1,
        measures=["norms.weight"],
    )
    (settings,) = study.runs()
    epochs = []

    def stop(epoch, most):
        epochs.append(epoch)
        if epochs == [1, 2, 3]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_one(settings, device="cuda", unfinished=tmp_path, on_epoch=stop)
    cut = run_one(settings, device="cuda", unfinished=tmp_path, on_epoch=stop)
    whole = run_one(settings, device="cuda")
    assert epochs == [1, 2, 3, 3, 4]
    assert cut.epochs == whole.epochs
    assert cut.checkpoint == whole.checkpoint


@pytest.mark.parametrize(
    ("autocast", "layout"),
    [("none", "usual"), ("bfloat16", "channels last"), ("bfloat16", "usual")],
)
@pytest.mark.parametrize(
    "model",
    [
        {"name": "resnet18", "width": 32, "head": "conv"},
        {"name": "vgg16", "width": 32, "head": "conv"},
        {"name": "densenet121", "growth": 12, "head": "conv"},
        {"name": "efficientnet_lite0", "size": 64},
        {"name": "vit_small"},
    ],
    ids=lambda model: model["name"],
)
def test_networks_learn_whether_recorded_or_not(tmp_path, monkeypatch, model, autocast, layout):
    if layout == "usual":
        monkeypatch.setattr(steps, "channels_last", lambda *_: None)
    if model["name"] == "efficientnet_lite0":
        pytest.importorskip(CODE)
        pytest.importorskip(WEIGHTS)
    # Images of ten colours, which any network tells apart.
    y = torch.arange(320) % 10
    x = (y[:, None] * torch.tensor([0.1, 0.05, 0.02]))[..., None, None].expand(-1, -1, 32, 32)
    noise = 0.01 * torch.rand(x.shape, generator=torch.Generator().manual_seed(0))
    numpy.savez(tmp_path / "colours.npz", x=(x + noise).numpy(), y=y.numpy())
    data = {"name": str(tmp_path / "colours.npz"), "test": str(tmp_path / "colours.npz")}
    training = {"epochs": 8, "batch_size": 32, "lr": 0.005, "momentum": 0.9, "autocast": autocast}
    # With a rate that stays, BatchNorm's averages lag behind the weights: on a CPU, too, the loss
    # jumped from 0.5 to 11 within an epoch.
    training["schedule"] = "cosine"
    (settings,) = tiny(model=model, data=data, training=training, grid={}, seeds=1).runs()
    recorded = run_one(settings, device="cuda")
    monkeypatch.setattr(steps, "recordable", lambda *_: False)
    plain = run_one(settings, device="cuda")
    for result in (recorded, plain):
        losses = [row.train_loss for row in result.epochs]
        assert result.outcome == "epochs", losses
        assert losses[-1] < losses[0], losses


def test_networks_trained_together_are_recorded_too(tmp_path, monkeypatch, recordings):
    # Three steps an epoch: recorded in the second, after which half of the members end.
    training = {"batch_size": 20, "momentum": 0.9, "dtype": "float64"}
    study = tiny(training=training, grid={"epochs": [2, 6]}, seeds=3)
    monkeypatch.setattr(steps, "recordable", lambda *_: False)
    alone = {run.id: run_one(run, device="cuda") for run in study.runs()}
    with Store.create(tmp_path, study) as store:
        execute(store, executor="vmap", device="cuda")
        assert {machine["trained"] for machine in store.machines().values()} == {"together"}
    assert len(recordings) == 2
    assert_same(lasting(tmp_path), alone)


def assert_same(kept, alone):
    """Ends, epochs and weights in a store are those of training one after another."""
    assert len(kept["weights"]) == len(alone)
    for run, weights in zip(kept["runs"], kept["weights"], strict=True):
        result = alone[run["id"]]
        assert run["outcome"] == result.outcome
        rows = [row for row in kept["epochs"] if row["run"] == run["id"]]
        for row, want in zip(rows, map(vars, result.epochs), strict=True):
            for name, value in want.items():
                is_close = value is not None and math.isclose(row[name], value, rel_tol=RTOL)
                assert is_close or row[name] is value, name
        want, have = load(result.checkpoint), load(weights)
        assert want.keys() == have.keys()
        for name in want:
            torch.testing.assert_close(have[name], want[name], rtol=RTOL, atol=RTOL)
