"""Warnings about the learning rate, what is refused, and that training does not notice it."""

import copy
import csv
import gc
import json
import random
import warnings

import numpy
import pytest
import torch
from torch import nn

import spiritlevel as sl
from spiritlevel.training import FlatnessMonitor
from training.learning_rate.rates_problem import Halves, make_step, quadratic, small_network
from training.monitor.monitor_problem import problem

pytestmark = pytest.mark.sampled(2)  # the others at night


def trained(optimizer_of, *, watched: bool, every=2):
    """Everything that a monitor could disturb, after a few steps."""
    random.seed(3), numpy.random.seed(3)
    model, data = problem()
    optimizer = optimizer_of(model.parameters())
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.5, total_iters=4)
    monitor = None
    if watched:
        monitor = FlatnessMonitor(
            model, data.tensors, measures=(), optimizer=optimizer, every=every
        )
    x, y = data.tensors
    draws = []
    for _ in range(2):
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            if monitor:
                monitor.step()
            schedule.step()
            draws.append((random.random(), float(numpy.random.rand()), float(torch.rand(()))))
        if monitor:
            monitor.epoch_end()
    if monitor:
        assert [row["status"] for row in monitor.rows] == ["ok"] * (2 if every == "epoch" else 3)
        assert all("rate.critical_sharpness" in row for row in monitor.rows)
    gradients = [p.grad.clone() for p in model.parameters()]
    return model.state_dict(), optimizer.state_dict(), gradients, draws


def assert_same(one, other):
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    else:
        assert one == other


@pytest.mark.parametrize("every", [2, "epoch"])
def test_training_is_bit_identical(every):
    def make(parameters):
        return torch.optim.Adam(parameters, lr=0.05, amsgrad=True)

    assert_same(trained(make, watched=False), trained(make, watched=True, every=every))


def test_everything_is_as_before_after_an_error():
    model, data = problem()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x, y = data.tensors
    monitor = FlatnessMonitor(model, (x, y), measures=(), optimizer=optimizer, every=1)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    with torch.no_grad():
        model[0].weight[0, 0] = torch.nan
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    gradients = [p.grad.clone() for p in model.parameters()]
    draws = torch.get_rng_state()
    row = monitor.step()
    assert row["status"] == "failed"
    assert "warning" not in row
    for name, value in model.state_dict().items():
        assert torch.equal(value.nan_to_num(7.0), weights[name].nan_to_num(7.0)), name
    assert_same(optimizer.state_dict(), state)
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))
    assert torch.equal(torch.get_rng_state(), draws)
    assert all(module.training for module in model.modules())


def test_a_monitor_that_is_gone_leaves_no_hook():
    model, x, y = small_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = FlatnessMonitor(model, (x, y), measures=(), optimizer=optimizer)
    assert len(optimizer._optimizer_step_pre_hooks) == 1
    del monitor
    gc.collect()
    assert not optimizer._optimizer_step_pre_hooks


# -- warnings ----------------------------------------------------------------------------------


def ratios(model, optimizer, x, y, rates, **options):
    """The warnings of rows at these rates; nothing moves."""
    monitor = FlatnessMonitor(
        model, (x, y), measures=(), optimizer=optimizer, rates="sharpness", loss="mse", **options
    )
    said = []
    for rate in rates:
        optimizer.param_groups[0]["lr"] = rate
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            row = monitor.measure()
        assert [str(w.message) for w in caught] == ([row["warning"]] if "warning" in row else [])
        assert all(w.category is RuntimeWarning for w in caught)
        said.append(bool(caught))
    return said, monitor


def test_one_warning_per_crossing():
    model = Halves()
    x, y, H = quadratic()
    edge = 2 / float(torch.linalg.eigvalsh(H)[-1])  # the rate at the edge
    optimizer = torch.optim.SGD(model.parameters(), lr=edge)
    rates = [edge * f for f in (0.5, 1.9, 2.1, 3.0, 1.1, 2.1, 0.95, 2.1, 2.2)]
    said, monitor = ratios(model, optimizer, x, y, rates, warn_above=2.0)
    assert said == [False, False, True, False, False, False, False, True, False]
    text = monitor.rows[2]["warning"]
    assert "2.1 times the edge of stability" in text
    assert f"Lower the learning rate to {edge:.2g} or less" in text
    assert not any(ratios(model, optimizer, x, y, rates, warn_above=None)[0])


def test_a_resumed_run_does_not_repeat_it():
    model = Halves()
    x, y, H = quadratic()
    edge = 2 / float(torch.linalg.eigvalsh(H)[-1])
    optimizer = torch.optim.SGD(model.parameters(), lr=edge)
    said, monitor = ratios(model, optimizer, x, y, [9 * edge], warn_above=2.0)
    assert said == [True]
    state = json.loads(json.dumps(monitor.state_dict()))
    again = FlatnessMonitor(
        model, (x, y), measures=(), optimizer=optimizer, rates="sharpness", loss="mse"
    )
    again.load_state_dict(state)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "warning" not in again.measure()


def test_without_a_threshold_the_critical_rate_warns():
    model = Halves()
    x, y, _ = quadratic()
    optimizer = torch.optim.SGD(model.parameters(), lr=3.0)  # the first step goes far too far
    monitor = FlatnessMonitor(
        model, (x, y), measures=(), optimizer=optimizer, rates="critical", every=1, loss="mse"
    )
    for _ in range(2):
        make_step(model, optimizer, x, y)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            monitor.step()
    make_step(model, optimizer, x, y)
    with pytest.warns(RuntimeWarning, match=r"last 3 updates of SGD up to step 3 were too long"):
        row = monitor.step()
    critical = 2 / row["rate.critical_sharpness"]
    assert f"critical learning rate is {critical:.4g}, not 3" in row["warning"]


def test_adam_is_not_warned_about_while_its_means_are_young():
    model, x, y = small_network()
    optimizer = torch.optim.Adam(model.parameters(), lr=10.0, betas=(0.75, 0.999))
    monitor = FlatnessMonitor(
        *(model, (x, y)), measures=(), optimizer=optimizer, rates="sharpness", every=1
    )
    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(5):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.param_groups[0]["lr"] = 1e9  # beyond every edge, and back for the next step
            rows.append(monitor.step())
            optimizer.param_groups[0]["lr"] = 1e-3
    status = [row.get("rate.sharpness.status") == "settling" for row in rows]
    assert status == [True, True, True, False, False]  # 1/(1 − β₁) is 4
    assert ["warning" in row for row in rows] == [False, False, False, True, False]


# -- where rows go -------------------------------------------------------------------------------


def test_rows_are_logged_like_any_measure(tmp_path):
    model, x, y = small_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=50.0)
    seen = {}

    class Writer:
        def add_scalar(self, name, value, step):
            seen[name] = value

    files = [tmp_path / "run.csv", tmp_path / "run.jsonl"]
    monitor = FlatnessMonitor(
        *(model, (x, y)), measures="head.trace", optimizer=optimizer, every=1, to=[*files, Writer()]
    )
    assert monitor.names == (
        *("head.trace", "rate.learning_rate", "rate.sharpness", "rate.threshold"),
        "rate.critical_sharpness",
    )
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    with pytest.warns(RuntimeWarning, match="edge of stability"):
        row = monitor.step()
    with files[0].open() as file:
        (written,) = csv.DictReader(file)
    assert float(written["rate.sharpness"]) == row["rate.sharpness"]
    assert written["warning"] == row["warning"]
    assert json.loads(files[1].read_text()) == row
    assert seen["flatness/rate.threshold"] == row["rate.threshold"] == 2 / 50


def test_the_trial_of_a_time_budget_leaves_no_trace():
    model, x, y = small_network()
    rows = []
    for share in (None, 0.9):
        torch.manual_seed(0)
        copied = copy.deepcopy(model)
        optimizer = torch.optim.Adam(copied.parameters(), lr=0.01)
        monitor = FlatnessMonitor(
            copied,
            (x, y),
            measures=(),
            optimizer=optimizer,
            every=1,
            max_overhead=share,
            clock=lambda: 0.0,
        )
        optimizer.zero_grad()
        nn.functional.cross_entropy(copied(x), y).backward()
        optimizer.step()
        rows.append(monitor.step())
    assert rows[0] == rows[1]


# -- what is refused -------------------------------------------------------------------------------


class OwnStep(torch.optim.SGD):
    """Looks like SGD, and is not."""

    def step(self, closure=None):
        super().step(closure)
        super().step(closure)


class SameStep(torch.optim.SGD):
    """SGD under another name."""


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda p: torch.optim.Adadelta(p), r"SGD, Adam, .* Got Adadelta\. Pass rates='critical'"),
        (lambda p: OwnStep(p, 0.1), r"Got OwnStep\. Pass rates='critical'"),
        (lambda p: sl.SAM(torch.optim.SGD(p, 0.1), rho=0.1), r"Got SAM\. Pass rates='critical'"),
        (lambda p: torch.optim.SGD(p, 0.1, maximize=True), r"minimize .* maximize=True"),
        (lambda p: torch.optim.SGD([torch.zeros(2, requires_grad=True)], 0.1), r"over others"),
        (lambda p: "sgd", r"must be the torch\.optim\.Optimizer .* Got str"),
    ],
)
def test_optimizers_that_do_not_fit(make, match):
    model, x, y = small_network()
    with pytest.raises(sl.SpiritlevelError, match=match):
        FlatnessMonitor(model, (x, y), measures=(), optimizer=make(model.parameters()))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"rates": "sharp"}, r"'rates' .* 'sharpness', 'critical' or a list of both\. Got 'sharp'"),
        ({"rates": ()}, r"'rates' .* Got \(\)"),
        ({"warn_above": 0}, r"'warn_above' .* above 0\. Got 0"),
    ],
)
def test_settings_that_do_not_fit(options, match):
    model, x, y = small_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(sl.SpiritlevelError, match=match):
        FlatnessMonitor(model, (x, y), measures=(), optimizer=optimizer, **options)


def test_a_subclass_that_steps_as_its_base_is_known():
    model, x, y = small_network()
    monitor = FlatnessMonitor(
        model, (x, y), measures=(), optimizer=SameStep(model.parameters(), 0.1), rates="sharpness"
    )
    assert monitor.measure()["rate.threshold"] == pytest.approx(20.0)


def test_states_that_tell_nothing():
    model, x, y = small_network()
    optimizer = torch.optim.Adam(model.parameters())
    monitor = FlatnessMonitor(model, (x, y), measures=(), optimizer=optimizer, rates="sharpness")
    row = monitor.measure()
    assert row["status"] == "failed"
    assert "Measure after the first optimizer.step()" in row["text"]
    decaying = torch.optim.AdamW(model.parameters(), lr=1.0, weight_decay=2.0)
    monitor = FlatnessMonitor(
        *(model, (x, y)), measures=(), optimizer=decaying, rates="sharpness", strict=True
    )
    nn.functional.cross_entropy(model(x), y).backward()
    decaying.step()
    with pytest.raises(sl.SpiritlevelError, match=r"rate times the weight decay must be below 2"):
        monitor.measure()
