"""Thresholds against real optimizers on quadratics, and sharpness against dense matrices."""

import pytest
import torch
from torch import nn

import spiritlevel as sl
from spiritlevel.training import FlatnessMonitor
from training.learning_rate.rates_problem import (
    Halves,
    dense_hessian,
    make_step,
    quadratic,
    small_network,
)

pytestmark = pytest.mark.sampled(2)  # the others at night

TINY = 1e-30  # of the first weights: their squares change no second moment that is near 1


def halves_of(model, **second):
    return [{"params": [model.first]}, {"params": [model.second], **second}]


def settled(optimizer, **moments):
    """Give an adaptive optimizer a state that its steps keep: long after bias corrections."""
    generator = torch.Generator().manual_seed(3)
    for group in optimizer.param_groups:
        for p in group["params"]:
            squares = 0.2 + torch.rand(p.shape, generator=generator).double()
            state = {"step": torch.tensor(1e18)}
            for key in moments["squares"]:
                state[key] = squares.clone()
            for key in moments.get("zeros", ()):
                state[key] = torch.zeros_like(p)
            if "mu_product" in moments:
                state["mu_product"] = torch.tensor(0.0)
            optimizer.state[p] = state
    return optimizer


def sgd(**settings):
    second = settings.pop("second", {})
    return lambda model: torch.optim.SGD(halves_of(model, **second), lr=0.1, **settings)


def adaptive(kind, *, squares, zeros=(), second=None, **settings):
    moments = {"squares": squares, "zeros": zeros}
    if kind is torch.optim.NAdam:
        moments["mu_product"] = True

    def make(model):
        groups = halves_of(model, **(second or {}))
        return settled(kind(groups, lr=0.1, **settings), **moments)

    return make


ADAM = {"squares": ["exp_avg_sq"], "zeros": ["exp_avg"], "betas": (0.9, 1 - 1e-16)}
MAX = ADAM | {"squares": ["exp_avg_sq", "max_exp_avg_sq"], "amsgrad": True}
RMS = {"squares": ["square_avg"], "zeros": ["momentum_buffer", "grad_avg"], "alpha": 1.0}
OPTIMIZERS = {
    "sgd": sgd(),
    "sgd decay": sgd(weight_decay=0.7),
    "heavy ball": sgd(momentum=0.9),
    "heavy ball dampened": sgd(momentum=0.8, dampening=0.5),
    "nesterov": sgd(momentum=0.9, nesterov=True),
    "nesterov decay": sgd(momentum=0.5, nesterov=True, weight_decay=0.3),
    "sgd groups": sgd(second={"lr": 0.02}),
    "all groups differ": sgd(
        momentum=0.9, second={"lr": 0.3, "momentum": 0.2, "nesterov": True, "weight_decay": 0.4}
    ),
    "adam": adaptive(torch.optim.Adam, **ADAM),
    "adam decay": adaptive(torch.optim.Adam, weight_decay=0.5, **ADAM),
    "adam groups": adaptive(
        torch.optim.Adam, second={"lr": 0.4, "betas": (0.3, 1 - 1e-16)}, **ADAM
    ),
    "amsgrad": adaptive(torch.optim.Adam, eps=0.3, **MAX),
    "adamw": adaptive(torch.optim.AdamW, weight_decay=3.0, **ADAM),
    "adamw groups": adaptive(
        torch.optim.AdamW, weight_decay=3.0, second={"weight_decay": 0.0, "lr": 0.2}, **ADAM
    ),
    "nadam": adaptive(torch.optim.NAdam, **ADAM),
    "nadam decoupled": adaptive(
        torch.optim.NAdam, weight_decay=4.0, decoupled_weight_decay=True, **ADAM
    ),
    "rmsprop": adaptive(torch.optim.RMSprop, **RMS),
    "rmsprop momentum": adaptive(torch.optim.RMSprop, momentum=0.7, eps=0.1, **RMS),
    "rmsprop centered": adaptive(torch.optim.RMSprop, centered=True, weight_decay=0.2, **RMS),
    "adagrad": adaptive(torch.optim.Adagrad, squares=["sum"]),
    "adagrad decay": adaptive(
        torch.optim.Adagrad, squares=["sum"], lr_decay=1e-18, second={"lr": 0.3}
    ),
}


def watched(model, optimizer, x, y):
    monitor = FlatnessMonitor(
        model,
        (x, y),
        measures=(),
        optimizer=optimizer,
        rates="sharpness",
        warn_above=None,
        loss="mse",
    )
    return monitor.measure()


@pytest.mark.sampled(4)  # the others at night
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_shrink_just_below_the_edge_and_grow_just_above_it(name):
    """The truth is the optimizer itself: no formula of this library is in the simulation."""
    make = OPTIMIZERS[name]

    def ratio(factor):
        model = Halves()
        x, y, _ = quadratic(factor)
        row = watched(model, make(model), x, y)
        return row["rate.sharpness"] / row["rate.threshold"]

    factor = 1.0
    for _ in range(4):  # several times, since weight decay does not scale with the loss
        factor /= ratio(factor)

    def growth(factor):
        """Of the distance from the minimum, between two late moments of a run."""
        model = Halves()
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(TINY)
        optimizer = make(model)
        x, y, _ = quadratic(factor)
        sizes = []
        for _ in range(400):
            make_step(model, optimizer, x, y)
            sizes.append(float(model.weights.norm()))
        return max(sizes[-50:]) / max(sizes[150:200])

    assert ratio(factor) == pytest.approx(1.0, abs=1e-3)
    assert growth(0.99 * factor) < 1.0
    assert growth(1.01 * factor) > 1.1


@pytest.mark.parametrize(
    ("optimizer", "threshold"),
    [
        (lambda p: torch.optim.SGD(p, 0.1), 20.0),
        (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), 38.0),
        (lambda p: torch.optim.SGD(p, 0.1, momentum=0.5, nesterov=True), 15.0),
        (lambda p: torch.optim.SGD(p, torch.tensor(0.1)), 20.0),
        (lambda p: torch.optim.Adam(p, 1e-3), 38_000.0),
        (lambda p: torch.optim.AdamW(p, 1e-3, weight_decay=20.0), 38_000.0 * 0.99),
        (lambda p: torch.optim.RMSprop(p, 1e-3, momentum=0.5), 3000.0),
        (lambda p: torch.optim.Adagrad(p, 0.01), 200.0),
    ],
)
def test_thresholds_by_hand(optimizer, threshold):
    model = Halves()
    x, y, _ = quadratic()
    made = optimizer(model.parameters())
    make_step(model, made, x, y)
    row = watched(model, made, x, y)
    assert row["rate.threshold"] == pytest.approx(threshold, rel=1e-6)
    assert row["rate.learning_rate"] == pytest.approx(made.param_groups[0]["lr"])


def test_for_sgd_the_sharpness_is_the_largest_eigenvalue():
    model, x, y = small_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    names = {"measures": "curvature.lambda_max", "rates": "sharpness"}
    monitor = FlatnessMonitor(model, (x, y), optimizer=optimizer, rtol=1e-5, **names)
    row = monitor.measure()
    assert row["rate.sharpness"] == pytest.approx(row["curvature.lambda_max"], rel=1e-5)
    assert row["rate.sharpness.residual"] <= 1e-3 * row["rate.sharpness"]


# S by hand: what the optimizer divides the gradient by, per unit of the rate
def _adam(state, group):
    b1, b2 = group["betas"]
    step = float(state["step"])
    squares = state["max_exp_avg_sq"] if group["amsgrad"] else state["exp_avg_sq"]
    return (1 - b1**step) * ((squares / (1 - b2**step)).sqrt() + group["eps"])


DENSE = {
    "adam": (lambda p: torch.optim.Adam(p, 0.01, weight_decay=0.1), _adam),
    "amsgrad": (lambda p: torch.optim.AdamW(p, 0.01, (0.9, 0.5), eps=1e-3, amsgrad=True), _adam),
    "rmsprop": (
        lambda p: torch.optim.RMSprop(p, 0.01, centered=True),
        lambda s, g: (s["square_avg"] - s["grad_avg"] ** 2).sqrt() + g["eps"],
    ),
    "adagrad": (
        lambda p: torch.optim.Adagrad(p, 0.01),
        lambda s, g: s["sum"].sqrt() + g["eps"],
    ),
}


@pytest.mark.parametrize("name", DENSE)
def test_the_preconditioned_eigenvalue_is_that_of_the_dense_matrix(name):
    make, preconditioner = DENSE[name]
    model, x, y = small_network()
    optimizer = make(model.parameters())
    for i in range(7):  # with gradients that shrink, so that amsgrad's maximum is of the past
        optimizer.zero_grad()
        (nn.functional.cross_entropy(model(x), y) / (i + 1)).backward()
        optimizer.step()
    monitor = FlatnessMonitor(
        model, (x, y), measures=(), optimizer=optimizer, rates="sharpness", max_passes=200
    )
    row = monitor.measure()
    names = [name for name, _ in model.named_parameters()]
    (group,) = optimizer.param_groups
    P = torch.cat(
        [preconditioner(optimizer.state[p], group).reshape(-1) for p in model.parameters()]
    )
    H = dense_hessian(model, x, y, names)
    if not group.get("decoupled_weight_decay"):
        H = H + group["weight_decay"] * torch.eye(len(H)).double()
    true = torch.linalg.eigvalsh(P.rsqrt()[:, None] * H * P.rsqrt())[-1]
    # a Ritz value is off by the square of the residual, 1e-3, over the gap
    assert row["rate.sharpness"] == pytest.approx(float(true), rel=1e-4)


def test_only_the_parameters_that_move_count():
    model, x, y = small_network()
    optimizer = torch.optim.SGD(
        [{"params": [model[0].weight]}, {"params": [model[2].weight], "lr": 0.0}], lr=0.1
    )
    row = FlatnessMonitor(
        model, (x, y), measures=(), optimizer=optimizer, rates="sharpness", rtol=1e-5
    ).measure()
    true = torch.linalg.eigvalsh(dense_hessian(model, x, y, ["0.weight"]))[-1]
    assert row["rate.sharpness"] == pytest.approx(float(true), rel=1e-4)
    assert row["rate.threshold"] == pytest.approx(20.0)


def test_a_rate_of_zero_has_no_threshold():
    model, x, y = small_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    row = FlatnessMonitor(
        model, (x, y), measures=(), optimizer=optimizer, rates="sharpness", rtol=1e-5
    ).measure()
    report = sl.measure(model, (x, y), measures="curvature.lambda_max", rtol=1e-5)
    expected = report["curvature.lambda_max"].value
    assert row["rate.sharpness"] == pytest.approx(expected, rel=1e-5)
    assert "rate.threshold" not in row
    assert row["status"] == "ok"
