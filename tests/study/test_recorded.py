"""Steps that are recorded as CUDA graphs are the steps asked for kernel by kernel."""

import pytest
import torch
from safetensors.torch import load

from spiritlevel.study import Store, execute, steps
from spiritlevel.study.recorded import WARM_UP, Recorded
from spiritlevel.study.running import run_one
from tiny_study import lasting, tiny

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


def test_what_waits_for_the_cpu_is_called_as_before():
    def waits(x):
        return (x * float(x.sum()),)

    call = Recorded(waits)
    for i in range(3 * WARM_UP):
        x = torch.full((2,), float(i), device="cuda")
        assert call(x)[0].tolist() == [2.0 * i * i] * 2
    assert not call._recordings


@pytest.mark.parametrize(
    "training",
    [{"momentum": 0.9}, {"optimizer": "adamw", "lr": 0.01, "schedule": "cosine"}],
)
def test_a_recorded_run_is_the_run(training, monkeypatch):
    study = tiny(
        model={"name": "digits_cnn", "width": 4}, training={"epochs": 3} | training, seeds=1
    )
    (settings,) = study.runs()[:1]
    recorded = run_one(settings, device="cuda")
    monkeypatch.setattr(steps, "_recordable", lambda *_: False)
    plain = run_one(settings, device="cuda")
    assert [vars(row) for row in recorded.epochs] == [vars(row) for row in plain.epochs]
    want, have = load(plain.checkpoint), load(recorded.checkpoint)
    for name in want:
        assert torch.equal(want[name], have[name])


def test_networks_trained_together_are_recorded_too(tmp_path):
    study = tiny(stop={"train_loss": 1.5}, training={"epochs": 6, "dtype": "float64"}, seeds=3)
    alone = {run.id: run_one(run, device="cuda") for run in study.runs()}
    with Store.create(tmp_path, study) as store:
        execute(store, executor="vmap", device="cuda")
    for row in lasting(tmp_path)["runs"]:
        assert row["outcome"] == alone[row["id"]].outcome
