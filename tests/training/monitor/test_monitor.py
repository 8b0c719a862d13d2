"""The monitor sees what `measure` sees, at the right moments, and training does not notice it."""

import random

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import spiritlevel as sl
import spiritlevel.training.monitor.monitor as monitor_module
from spiritlevel.training import FlatnessMonitor
from training.monitor.monitor_problem import CLASSES, problem

pytestmark = pytest.mark.sampled(3)  # the others at night


class Augmented(TensorDataset):
    """Samples that draw from every random state there is."""

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x * random.random() + float(numpy.random.rand()) + torch.rand(()), y


def drawing(model: nn.Module, batch) -> tuple:
    """A way of calling the model that draws as well."""
    random.random(), numpy.random.rand(), torch.rand(())
    return model(batch[0]), batch[1]


class FakeClock:
    """Time that passes only when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def train(*, watched: bool) -> tuple[dict, dict, list, list]:
    """Everything that a monitor could disturb, after two epochs."""
    random.seed(3)
    numpy.random.seed(3)
    model, data = problem()
    generator = torch.Generator().manual_seed(5)
    loader = DataLoader(data, batch_size=8, shuffle=True, generator=generator)
    other = DataLoader(Augmented(*data.tensors), batch_size=8, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    monitors = []
    if watched:
        names = ["relative.kappa", "curvature.lambda_max", "head.*"]
        monitors = [
            FlatnessMonitor(model, loader, measures=names, every=5, forward=drawing),
            FlatnessMonitor(model, other, every="epoch", num_samples=10),
        ]
    draws = []
    for _ in range(2):
        for batches in (loader, other):
            for x, y in batches:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                for monitor in monitors:
                    monitor.step()
                draws.append((random.random(), float(numpy.random.rand()), float(torch.rand(()))))
        for monitor in monitors:
            monitor.epoch_end()
    gradients = [p.grad.clone() for p in model.parameters()]
    assert all(module.training for module in model.modules())
    if watched:
        assert [len(monitor.rows) for monitor in monitors] == [4, 2]
    return model.state_dict(), optimizer.state_dict(), gradients, draws


def test_training_is_bit_identical_with_and_without_a_monitor():
    plain = train(watched=False)
    seen = train(watched=True)
    for name, value in plain[0].items():
        assert torch.equal(value, seen[0][name]), name
    momenta = [state["momentum_buffer"] for state in plain[1]["state"].values()]
    for ours, theirs in zip(seen[1]["state"].values(), momenta, strict=True):
        assert torch.equal(ours["momentum_buffer"], theirs)
    assert all(torch.equal(a, b) for a, b in zip(plain[2], seen[2], strict=True))
    assert plain[3] == seen[3]


def test_modes_that_were_set_one_by_one_come_back():
    model, data = problem()
    model.train()
    model[1].eval()
    FlatnessMonitor(model, DataLoader(data, batch_size=40)).measure()
    assert [m.training for m in model] == [True, False, True, True, True]


def test_a_row_is_what_measure_says():
    model, data = problem()
    x, y = data.tensors
    names = ["relative.kappa", "head.trace", "curvature.lambda_max"]
    monitor = FlatnessMonitor(model, (x, y), measures=names, rtol=1e-4)
    row = monitor.measure()
    report = sl.measure(model.eval(), (x, y), measures=names, rtol=1e-4)
    for name in names[:2]:
        assert row[name] == report[name].value
    assert row[names[2]] == pytest.approx(report[names[2]].value, rel=1e-4)  # the residual allowed
    assert row["curvature.lambda_max.residual"] < 1e-3 * row["curvature.lambda_max"]
    assert (row["step"], row["epoch"], row["status"]) == (0, 0, "ok")
    assert row["seconds"] > 0


def test_estimates_come_with_their_error():
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, CLASSES))
    monitor = FlatnessMonitor(
        model, (torch.randn(9, 6), torch.arange(9) % CLASSES), measures="curvature.trace_squared"
    )
    row = monitor.measure()
    assert row["curvature.trace_squared.stderr"] > 0


def test_every_row_is_about_the_same_samples():
    model, data = problem()
    monitor = FlatnessMonitor(
        model, DataLoader(data, batch_size=16, shuffle=True), num_samples=numpy.int64(20)
    )
    first, second = monitor.measure(), monitor.measure()
    assert first["relative.kappa"] == second["relative.kappa"]
    assert sum(len(x) for x, _ in monitor.data) == 20


def test_samples_that_change_afterwards_do_not_matter():
    model, data = problem()
    x, y = (tensor.clone() for tensor in data.tensors)
    monitor = FlatnessMonitor(model, [x, y])  # what next(iter(loader)) gives
    before = monitor.measure()["relative.kappa"]
    x.zero_()
    assert monitor.measure()["relative.kappa"] == before


def test_an_ema_copy_is_measured_even_if_frozen():
    model, data = problem()
    x, y = data.tensors
    ema = torch.optim.swa_utils.AveragedModel(model)
    for parameter in ema.parameters():
        parameter.requires_grad_(False)
    monitor = FlatnessMonitor(ema, (x, y))
    expected = sl.measure(model.eval(), (x, y), measures="relative.kappa")["relative.kappa"].value
    assert monitor.measure()["relative.kappa"] == expected
    assert not any(p.requires_grad for p in ema.parameters())


@pytest.mark.parametrize("block", [torch.no_grad, torch.inference_mode])
def test_it_works_where_the_caller_has_gradients_off(block):
    model, data = problem()
    expected = FlatnessMonitor(model, data.tensors).measure()["relative.kappa"]
    with block():
        x, y = (tensor.clone() for tensor in data.tensors)
        assert FlatnessMonitor(model, (x, y)).measure()["relative.kappa"] == expected
        assert not torch.is_grad_enabled()


# -- when --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every", "steps"),
    [(1, [1, 2, 3, 4, 5, 6]), (4, [4]), ("2 steps", [2, 4, 6]), ("epoch", [3, 6])],
)
def test_rows_come_when_they_are_due(every, steps):
    model, data = problem()
    monitor = FlatnessMonitor(model, data.tensors, every=every, measures="head.trace")
    for _ in range(2):
        for _ in range(3):
            monitor.step()
        monitor.epoch_end()
    assert [row["step"] for row in monitor.rows] == steps
    assert [row["epoch"] for row in monitor.rows] == [(step - 1) // 3 for step in steps]


def test_every_second_epoch():
    model, data = problem()
    monitor = FlatnessMonitor(model, data.tensors, every="2 epochs", measures="head.trace")
    rows = [monitor.epoch_end(epoch) for epoch in range(4)]
    assert [row and row["epoch"] for row in rows] == [None, 1, None, 3]


def test_time_budget_by_hand(monkeypatch):
    # A step takes 1 s, a measurement 0.05 s a sample, and 10 % may go into measuring. The trial on
    # 5 of the 40 samples takes 0.25 s and lets 2 s be expected, so the n-th measurement fits once
    # 0.25 + 2n is 10 % of the steps so far: after 22.5, 42.5, 62.5, 82.5 s.
    clock = FakeClock()
    model, data = problem()
    options = {"measures": "head.trace", "every": 1, "clock": clock}
    monitor = FlatnessMonitor(model, data.tensors, max_overhead=0.1, **options)
    free = FlatnessMonitor(model, data.tensors, **options)
    real = monitor_module.measured

    def slow(setup, model, data, **options):
        clock.now += 0.05 * sum(len(x) for x, _ in data)
        return real(setup, model, data, **options)

    monkeypatch.setattr(monitor_module, "measured", slow)
    measured = []
    for step in range(1, 101):
        clock.now += 1.0
        if monitor.step() is not None:
            measured.append(step)
        if step >= 3:  # the trial is paid for
            assert monitor.overhead <= 0.1 + 1e-12
    assert measured == [23, 43, 63, 83]
    assert [row["seconds"] for row in monitor.rows] == pytest.approx([2.0] * 4)
    assert free.step()["seconds"] == pytest.approx(2.0)  # no limit, no trial


def test_the_trial_leaves_no_trace():
    model, data = problem()
    clock = FakeClock()  # no time passes: everything fits
    names = ["relative.kappa", "curvature.lambda_max"]
    options = {"measures": names, "clock": clock}
    tried = FlatnessMonitor(model, data.tensors, max_overhead=0.1, **options)
    free = FlatnessMonitor(model, data.tensors, **options)
    assert tried.epoch_end() == free.epoch_end()


def test_time_between_two_runs_is_not_training():
    clock = FakeClock()
    model, data = problem()
    options = {"measures": "head.trace", "every": 1, "max_overhead": 0.1, "clock": clock}
    monitor = FlatnessMonitor(model, data.tensors, **options)
    clock.now += 100.0
    monitor.start()
    clock.now += 7.0
    state = monitor.state_dict()
    clock.now += 1000.0
    resumed = FlatnessMonitor(model, data.tensors, **options)
    resumed.load_state_dict(state)
    clock.now += 1.0
    assert resumed._budget.training == 8.0


# -- warm starts -------------------------------------------------------------------------------


def test_eigenvalues_start_from_the_vector_found_before(monkeypatch):
    model, data = problem()
    found = []
    real = monitor_module.eigenvalues

    def spy(*args, **options):
        found.append((options["start"], real(*args, **options)))
        return found[-1][1]

    monkeypatch.setattr(monitor_module, "eigenvalues", spy)
    names = ["curvature.lambda_max", "curvature.lambda_min"]
    monitor = FlatnessMonitor(model, data.tensors, measures=names, rtol=1e-4)
    monitor.measure()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.001)
    row = monitor.measure()
    assert [start for start, _ in found[:2]] == [None, None]
    for (_, cold), (start, warm) in zip(found[:2], found[2:], strict=True):
        assert start is cold
        assert warm.cost.products < cold.cost.products
    report = sl.measure(model.eval(), data.tensors, measures=names, rtol=1e-4)
    for name in names:
        assert row[name] == pytest.approx(report[name].value, rel=1e-4)


def test_thawed_layers_do_not_trip_over_an_old_vector():
    model, data = problem()
    model[0].requires_grad_(False)
    monitor = FlatnessMonitor(model, data.tensors, measures="curvature.lambda_max", rtol=1e-4)
    assert monitor.measure()["status"] == "ok"
    model[0].requires_grad_(True)
    row = monitor.measure()
    report = sl.measure(model.eval(), data.tensors, measures="curvature.lambda_max", rtol=1e-4)
    assert row["curvature.lambda_max"] == pytest.approx(
        report["curvature.lambda_max"].value, rel=1e-4
    )
