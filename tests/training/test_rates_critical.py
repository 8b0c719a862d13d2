"""The critical sharpness against closed forms of quadratics, and its search on given curves."""

import math

import pytest
import torch
from torch import nn

import spiritlevel as sl
from spiritlevel.measures.setup import Setup
from spiritlevel.training import FlatnessMonitor
from spiritlevel.training.learning_rate.critical_step import LONGEST, _search, critical_step
from training.rates_problem import Halves, make_step, quadratic

NAME = "rate.critical_sharpness"


def watched(model, optimizer, x, y, **options):
    options = {"measures": (), "rates": "critical", "every": 1, "warn_above": None} | options
    return FlatnessMonitor(model, (x, y), optimizer=optimizer, loss="mse", **options)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.01),
        lambda p: torch.optim.SGD(p, lr=3.0),  # the step is far too long
        lambda p: torch.optim.Adam(p, lr=0.01),
        lambda p: torch.optim.Adadelta(p, lr=1.0),  # of which no threshold is known
        lambda p: torch.optim.Rprop(p, lr=0.001),
    ],
)
def test_on_a_quadratic_it_is_the_curvature_along_the_update(make):
    model = Halves()
    x, y, H = quadratic()
    optimizer = make(model.parameters())
    monitor = watched(model, optimizer, x, y)
    for _ in range(3):
        before = model.weights.clone()
        make_step(model, optimizer, x, y)
        row = monitor.step()
        rate = optimizer.param_groups[0]["lr"]
        u = (before - model.weights) / rate
        true = (u @ H @ u) / ((H @ before) @ u)
        assert row[NAME] == pytest.approx(float(true), rel=1e-8)
        assert row["rate.learning_rate"] == rate


def test_for_gradient_descent_it_is_at_most_the_largest_eigenvalue():
    model = Halves()
    x, y, H = quadratic()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = watched(model, optimizer, x, y, rates=("sharpness", "critical"))
    gradient = H @ model.weights
    make_step(model, optimizer, x, y)
    row = monitor.step()
    quotient = (gradient @ H @ gradient) / (gradient @ gradient)
    assert row[NAME] == pytest.approx(float(quotient), rel=1e-8)
    assert row["rate.sharpness"] == pytest.approx(float(torch.linalg.eigvalsh(H)[-1]), rel=1e-4)
    assert row[NAME] <= row["rate.sharpness"]


def test_the_rate_is_that_of_the_step_even_if_a_schedule_has_changed_it_since():
    model = Halves()
    x, y, H = quadratic()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
    monitor = watched(model, optimizer, x, y)
    gradient = H @ model.weights
    make_step(model, optimizer, x, y)
    schedule.step()
    row = monitor.step()
    true = (gradient @ H @ gradient) / (gradient @ gradient)
    assert row[NAME] == pytest.approx(float(true), rel=1e-8)
    assert row["rate.learning_rate"] == pytest.approx(0.001)


def test_an_update_that_points_uphill_says_so():
    model = Halves()
    x, y, _ = quadratic()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, maximize=True)
    monitor = watched(model, optimizer, x, y)
    make_step(model, optimizer, x, y)
    row = monitor.step()
    assert NAME not in row
    assert row[f"{NAME}.status"] == "uphill"
    assert row["status"] == "ok"


def test_no_update_and_no_step():
    model = Halves()
    x, y, _ = quadratic()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    monitor = watched(model, optimizer, x, y, every=2)
    assert monitor.measure()[f"{NAME}.status"] == "no step seen"
    for _ in range(2):
        make_step(model, optimizer, x, y)
        row = monitor.step()
    assert row[f"{NAME}.status"] == "no update"


def test_it_takes_forwards_only():
    x, y, _ = quadratic()
    model = Halves()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    after = {name: 0.9 * p for name, p in before.items()}
    found = critical_step(Setup("mse"), model, (x, y), before, after)
    assert found.multiple == pytest.approx(20.0, rel=1e-8)  # −w is w again after twice the way to 0
    assert found.cost.backwards == found.cost.products == 0
    assert found.cost.forwards <= 16 * len(x)


@pytest.mark.parametrize("guess", [1e-9, 0.01, 1.0, 300.0, 1e9])
@pytest.mark.parametrize("root", [1e-4, 0.3, 1.0, 7.0, 2e4])
def test_the_search_finds_the_root_wherever_it_begins(guess, root):
    for bend in (1.0, 0.0, 1.7):  # a cubic term, which no parabola follows

        def curve(a, bend=bend):
            return a * (a - root) * (root + bend * a)

        outcome, found = _search(curve, 0.0, 0.0, guess)
        assert outcome == "found"
        assert found == pytest.approx(root, rel=1e-9 if not bend else 0.02)


def test_a_loss_that_never_rises_gives_a_bound():
    assert _search(lambda a: math.exp(-a), 1.0, 0.0, 1.0) == ("no rise", LONGEST)


def test_batches_and_one_batch_agree():
    x, y, _ = quadratic()
    model = Halves()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitors = [
        watched(model, optimizer, x, y),
        FlatnessMonitor(
            model,
            [(x[:2], y[:2]), (x[2:], y[2:])],
            measures=(),
            optimizer=optimizer,
            every=1,
            loss="mse",
            warn_above=None,
        ),
    ]
    make_step(model, optimizer, x, y)
    rows = [monitor.step() for monitor in monitors]
    assert rows[0][NAME] == pytest.approx(rows[1][NAME], rel=1e-10)


def test_sam_is_measured_along_its_own_update():
    model = Halves()
    x, y, H = quadratic()
    optimizer = sl.SAM(torch.optim.SGD(model.parameters(), lr=0.01), rho=0.1)
    monitor = watched(model, optimizer, x, y)
    before = model.weights.clone()

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    optimizer.step(closure)
    row = monitor.step()
    u = (before - model.weights) / 0.01
    assert row[NAME] == pytest.approx(float((u @ H @ u) / ((H @ before) @ u)), rel=1e-8)
