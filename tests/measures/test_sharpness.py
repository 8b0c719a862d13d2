"""The sharpness family against trust-region solutions, scipy's optimizer and plain loops."""

import copy
import dataclasses
import re

import numpy as np
import pytest
import scipy.optimize
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from measures.forms import sharpness as forms
from spiritlevel.analysis import reference_problems as problems
from spiritlevel.errors import NotFinite
from spiritlevel.measures import get, names
from spiritlevel.measures.options import Options
from spiritlevel.measures.setup import Setup
from spiritlevel.measures.sharpness.worst_case import Ball

pytestmark = pytest.mark.sampled(3)  # the others at night

SHARPNESS = names("sharpness.*")


def measured(model, data, name, *, loss="cross_entropy", seed=0, layers=None, **options):
    """One of the family."""
    report = sl.measure(
        model, data, loss=loss, measures=name, options=options, seed=seed, layers=layers
    )
    return report[name]


def perfect(problem):
    """The same problem with targets that the model meets exactly: its gradient is zero.

    In quarters, so that no sum is rounded, in whatever order it is taken.
    """
    with torch.no_grad():
        for parameter in problem.model.parameters():
            parameter.copy_((4 * parameter).round() / 4)
    inputs = [(4 * x).round() / 4 for x, _ in problem.data]
    data = [(x, problem.model(x).detach()) for x in inputs]
    return dataclasses.replace(problem, data=data)


# -- the worst case -------------------------------------------------------------------------------


@pytest.mark.parametrize("restarts", [0, 2])
def test_at_zero_gradient_it_is_the_largest_eigenvalue(restarts):
    problem = perfect(problems.linear_regression())
    H, g = forms.squared_error(problem.model, problem.inputs(), problem.targets())
    assert float(g.norm()) == 0.0
    found = measured(
        problem.model, problem.data, "sharpness.worst", loss="mse", rho=0.3, restarts=restarts
    )
    top = float(torch.linalg.eigvalsh(H)[-1])
    assert found.value == pytest.approx(0.3**2 * top / 2, rel=1e-9)
    assert found.text.startswith(f"the highest of {max(restarts, 1)} climb")


SIGNS = torch.tensor([1.0, -5.0]).double()


def saddle(z, y):
    """Bends down five times as much as up."""
    return ((z - y).square() * SIGNS).sum(dim=1)


@pytest.mark.parametrize("offset", [0.0, 1e-4, 1.0])
def test_where_the_loss_bends_down_more_than_up(offset):
    problem = perfect(problems.linear_regression())
    data = [(x, y + offset) for x, y in problem.data]
    x = torch.cat([problem.inputs(), torch.ones(8, 1).double()], dim=1)
    H = torch.kron(torch.diag(SIGNS), 2 * x.T @ x / 8)
    g = torch.outer(-2 * offset * SIGNS, x.mean(dim=0)).flatten()
    values = torch.linalg.eigvalsh(H)
    assert float(-values[0]) > 4 * float(values[-1])
    found = measured(problem.model, data, "sharpness.worst", loss=saddle, rho=0.3)
    assert found.value == pytest.approx(forms.highest_in_ball(H, g, 0.3), rel=1e-8)
    assert found.status is sl.results.Status.OK


def mean_loss(model, x, y, scale):
    """Loss and gradient as functions of u, where the weights are theta + scale * u."""
    theta = torch.cat([p.detach().flatten() for p in model.parameters()])
    sizes = [p.numel() for p in model.parameters()]

    def value(u):
        moved = (theta + scale * torch.tensor(u)).requires_grad_()
        parts = moved.split(sizes)
        named = {
            name: part.view(p.shape)
            for (name, p), part in zip(model.named_parameters(), parts, strict=True)
        }
        loss = F.cross_entropy(torch.func.functional_call(model, named, (x,)), y)
        (g,) = torch.autograd.grad(loss, moved)
        return -float(loss.detach()), -(scale * g).numpy()

    return value, len(theta)


def brute_force(model, x, y, radius, *, relative=False, starts=6):
    """The highest loss in the ball that scipy's SQP finds from several starts, less that at 0."""
    theta = torch.cat([p.detach().flatten() for p in model.parameters()])
    value, size = mean_loss(model, x, y, theta.abs() if relative else torch.ones_like(theta))
    ball = {
        "type": "ineq",
        "fun": lambda u: radius**2 - u @ u,
        "jac": lambda u: -2 * u,
    }
    draw = np.random.default_rng(0)
    best = 0.0
    for number in range(starts):
        start = -value(np.zeros(size))[1] if number == 0 else draw.normal(size=size)
        start *= 0.9 * radius / np.linalg.norm(start)
        found = scipy.optimize.minimize(
            value, start, jac=True, constraints=ball, method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 300},
        )  # fmt: skip
        if found.x @ found.x <= radius**2 * (1 + 1e-9):
            best = max(best, -found.fun)
    return best + value(np.zeros(size))[0]


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("radius", [0.05, 0.5])
def test_on_softmax_regression_scipy_finds_nothing_higher(relative, radius):
    problem = problems.softmax_regression()
    name, option = ("adaptive", "adaptive_rho") if relative else ("worst", "rho")
    found = measured(problem.model, problem.data, f"sharpness.{name}", **{option: radius})
    x, y = problem.inputs(), problem.targets()
    expected = brute_force(problem.model, x, y, radius, relative=relative)
    assert found.value == pytest.approx(expected, rel=1e-6)
    assert found.residual < 1e-9 * found.value


@pytest.mark.nightly
def test_on_a_relu_network_scipy_finds_hardly_more():
    problem = problems.relu_mlp()
    x, y = problem.inputs(), problem.targets()
    for name, relative, radius in (("worst", False, 0.2), ("adaptive", True, 0.5)):
        option = {"adaptive_rho" if relative else "rho": radius}
        found = measured(problem.model, problem.data, f"sharpness.{name}", **option)
        expected = brute_force(problem.model, x, y, radius, relative=relative, starts=3)
        # a lower bound: where the ReLUs switch there are many peaks, of nearly the same height
        assert found.value >= 0.98 * expected


def test_adaptive_leaves_zero_weights_alone():
    problem = problems.linear_regression()
    with torch.no_grad():
        problem.model.weight[0, 1] = 0.0
        problem.model.bias[1] = 0.0
    found = measured(problem.model, problem.data, "sharpness.adaptive", loss="mse")
    H, g = forms.squared_error(problem.model, problem.inputs(), problem.targets())
    size = forms.sizes(problem.model)
    expected = forms.highest_in_ball(size[:, None] * H * size, size * g, 0.5)
    assert found.value == pytest.approx(expected, rel=1e-9)


def test_random_starts_spend_their_length_on_weights_that_can_move():
    problem = problems.linear_regression()
    with torch.no_grad():
        problem.model.weight[0].zero_()
    workspace = Setup(loss="mse").workspace(problem.model, problem.data)
    start = Ball(workspace, radius=0.5, relative=True)._random(0)
    assert float(start.norm()) == pytest.approx(0.5, rel=1e-14)
    assert (start == 0).tolist() == [True] * 3 + [False] * 5


def test_a_network_of_zeros_has_no_adaptive_ball():
    model = nn.Linear(3, 2).double()
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    data = problems.linear_regression().data
    found = measured(model, data, "sharpness.adaptive", loss="mse")
    assert (found.value, found.residual) == (0.0, 0.0)


def test_a_peak_on_the_kinks_of_relus_is_known_well():
    # curvature read off across a kink promised rises of a hundred times the value here
    problem = problems.relu_mlp()
    found = measured(problem.model, problem.data, "sharpness.adaptive_m_worst", m=3)
    assert found.status is sl.results.Status.OK
    assert found.residual < 1e-3 * found.value


def test_too_few_steps_are_said_to_be_too_few():
    problem = problems.relu_mlp()
    found = measured(problem.model, problem.data, "sharpness.adaptive", ascent_steps=1)
    assert found.status is sl.results.Status.NOT_CONVERGED
    assert "still rising" in found.text
    assert "Raise ascent_steps above 1." in found.text
    more = measured(problem.model, problem.data, "sharpness.adaptive")
    assert more.status is sl.results.Status.OK
    assert found.value < more.value


# -- groups ---------------------------------------------------------------------------------------


def recut(data, size):
    x, y = torch.cat([x for x, _ in data]), torch.cat([y for _, y in data])
    return list(zip(x.split(size), y.split(size), strict=True))


@pytest.mark.parametrize("relative", [False, True])
def test_m_sharpness_is_the_mean_of_the_groups_worst_cases(relative):
    problem = problems.softmax_regression()
    x, y = problem.inputs(), problem.targets().clone()
    y[[1, 6, 7]] = -100  # groups of 3 count for 2, 3 and 0
    y[[1, 4]] = torch.tensor([-100, 0])
    name, option = ("adaptive_m_worst", "adaptive_rho") if relative else ("m_worst", "rho")
    total, weight = 0.0, 0
    for cut in (slice(0, 3), slice(3, 6)):
        keep = y[cut] != -100
        group = x[cut][keep], y[cut][keep]
        rise = brute_force(problem.model, *group, 0.2, relative=relative, starts=2)
        total, weight = total + len(group[1]) * rise, weight + len(group[1])
    values = []
    for size in (1, 2, 5, 8):
        data = recut([(x, y)], size)
        found = measured(problem.model, data, f"sharpness.{name}", m=3, **{option: 0.2})
        assert found.value == pytest.approx(total / weight, rel=1e-6)
        assert found.text.startswith("a climb in each of 2 groups")
        values.append(found.value)
    assert values == pytest.approx([values[0]] * 4, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "option"),
    [("worst", "rho"), ("adaptive", "adaptive_rho"), ("m_worst", "rho")],
)
def test_a_radius_at_which_the_outputs_overflow_is_named(name, option):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))  # float32
    data = [(torch.randn(6, 4), torch.arange(6) % 3)]
    with pytest.raises(NotFinite, match=rf"a radius of 1e\+25\. .* a smaller '{option}'"):
        measured(model, data, f"sharpness.{name}", **{option: 1e25})


@pytest.mark.parametrize("relative", [False, True])
def test_one_group_of_all_samples_is_the_worst_case_without_restarts(relative):
    problem = problems.relu_convnet()
    pair = ("adaptive", "adaptive_m_worst") if relative else ("worst", "m_worst")
    whole, group = (
        measured(problem.model, problem.data, f"sharpness.{name}", m=100, restarts=0)
        for name in pair
    )
    assert group.value == pytest.approx(whole.value, rel=1e-9)
    assert (whole.cost, whole.residual > 0) == (group.cost, group.residual > 0)


def test_smaller_groups_are_sharper():
    problem = problems.relu_mlp()
    values = [
        measured(problem.model, problem.data, "sharpness.m_worst", m=m).value for m in (1, 2, 4, 8)
    ]
    assert values == sorted(values, reverse=True)


# -- the average ----------------------------------------------------------------------------------


def test_averages_cover_the_quadratic_closed_form():
    problem = problems.linear_regression()
    expected = forms.forms(
        problem.model, problem.inputs(), problem.targets(), "mse", Options(sigma=0.1, m=3)
    )
    for name in ("sharpness.average", "sharpness.adaptive_average"):
        off = []
        for seed in range(12):
            found = measured(problem.model, problem.data, name, loss="mse", sigma=0.1, seed=seed)
            off.append((found.value - float(expected[name])) / found.stderr)
        assert max(map(abs, off)) < 4.5  # standard errors, from 50 draws with heavy tails
        assert abs(sum(off)) / 12**0.5 < 4


def test_the_promised_number_of_passes_suffices():
    problem = problems.linear_regression()
    first = sl.measure(
        problem.model, problem.data, loss="mse", measures="sharpness.average", rtol=0.15
    )["sharpness.average"]
    assert first.status is sl.results.Status.NOT_CONVERGED
    assert first.text.startswith("50 draws")  # two passes each
    enough = int(re.search(r"max_passes=(\d+) would have sufficed", first.text).group(1))
    second = sl.measure(
        problem.model,
        problem.data,
        loss="mse",
        measures="sharpness.average",
        rtol=0.15,
        max_passes=enough,
    )["sharpness.average"]
    assert second.status is sl.results.Status.OK
    low, high = second.interval
    assert high - low <= 2 * 0.15 * second.value


def test_round_off_is_part_of_the_error_in_single_precision():
    double, single = problems.relu_mlp(), problems.relu_mlp(torch.float32)
    for sigma in (1e-1, 1e-3, 1e-5):
        exact = measured(double.model, double.data, "sharpness.average", sigma=sigma)
        found = measured(single.model, single.data, "sharpness.average", sigma=sigma)
        assert exact.residual is None or exact.residual < 1e-3 * abs(exact.value)
        assert abs(found.value - exact.value) <= found.residual + 1e-4 * abs(exact.value)
    assert "use more noise, or a network in float64" in found.text


@pytest.mark.parametrize("name", ["sharpness.average", "sharpness.adaptive_average"])
def test_a_loss_that_is_linear_in_the_weights_does_not_rise_on_average(name, generator):
    """What noise adds to it, the mirror image of the noise takes away."""
    model = nn.Linear(3, 2).double()
    x = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    found = sl.measure(
        model,
        (x, torch.zeros(5)),
        loss=lambda outputs, targets: outputs.sum(dim=1),
        measures=name,
        max_passes=8,
        options={"sigma": 0.5, "adaptive_sigma": 0.5},
    )[name]
    assert abs(found.value) < 1e-13


def test_noise_that_changes_nothing_leaves_zero_without_an_error():
    model = nn.Linear(2, 2).double()
    data = [(torch.zeros(4, 2).double(), torch.zeros(4, 2).double())]
    found = measured(model, data, "sharpness.average", loss=lambda z, y: (0 * z + y).sum(dim=1))
    assert (found.value, found.stderr, found.interval) == (0.0, 0.0, (0.0, 0.0))
    assert not found.exact  # draws that agree are no proof


# -- which weights --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHARPNESS)
def test_only_the_chosen_layers_are_perturbed(name):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    data = problems.linear_regression().data
    x, y = torch.cat([x for x, _ in data]), torch.cat([y for _, y in data])
    features = model[:2](x).detach()
    options = {"m": 3, "sigma": 0.1}
    expected = float(forms.forms(model[2], features, y, "mse", Options(**options))[name])
    frozen = copy.deepcopy(model)
    frozen[0].requires_grad_(False)
    for network, layers in ((model, "2"), (frozen, None)):
        found = measured(network, data, name, loss="mse", layers=layers, **options)
        error = found.residual if found.stderr is None else 4.5 * found.stderr
        assert abs(found.value - expected) <= error + 1e-9 * expected


# -- sharing --------------------------------------------------------------------------------------


def counted(cards):
    """Work of the measures themselves, beside the plan and the pass that come first."""
    problem = problems.relu_mlp()
    workspace = Setup(options=Options(m=3, target="loss")).workspace(problem.model, problem.data)
    with workspace.surface.preserved():
        workspace.run(cards[0].needs)
        before = workspace.cost
        for card in cards:
            card.function(workspace)
    return workspace.cost - before


def test_measures_asked_for_together_share_exactly_the_work_at_the_weights_themselves():
    sharing = ["sharpness.worst", "sharpness.adaptive", "sharpness.m_worst"]
    sharing += ["sharpness.average", "sharpness.adaptive_average"]
    sharing += ["pac_bayes.sigma", "pac_bayes.magnitude"]
    cards = [get(name) for name in sharing]
    alone = sum((counted([card]) for card in cards), sl.results.Cost())
    saved = alone - counted(cards)
    # loss and gradient for the second climb; the loss for three of the four averages
    assert saved == sl.results.Cost(forwards=8 + 3 * 8, backwards=8)
