"""The noise that the weights bear: closed forms, and how often the intervals cover them."""

import functools
import math
import re
import statistics

import pytest
import torch
from torch import nn

import spiritlevel as sl
from measures.forms import pac_bayes as forms
from measures.forms.sharpness import squared_error
from spiritlevel.engine.weight_space.perturbed import PerturbedLoss, WeightNoise, normal_numbers
from spiritlevel.measures import get
from spiritlevel.measures.options import Options
from spiritlevel.measures.setup import Setup
from spiritlevel.verbs import reference_problems as problems

OF_NOISE = ["pac_bayes.sigma", "pac_bayes.magnitude"]
BOTH = pytest.mark.parametrize("name", OF_NOISE)
ALL = pytest.mark.parametrize("name", [*OF_NOISE, "pac_bayes.bound"])
SEEDS = 200


def measured(model, data, name, *, loss="cross_entropy", seed=0, **options):
    return sl.measure(model, data, loss=loss, measures=name, options=options, seed=seed)[name]


class DenseLoss(PerturbedLoss):
    """The loss of a linear layer under squared error, read off its Hessian and gradient."""

    def __init__(self, problem, surface):
        super().__init__(surface, chunk=8, gradient_chunk=8)
        self.H, self.g = squared_error(problem.model, problem.inputs(), problem.targets())
        self.centre = self._flat(self.weights)

    def _flat(self, point):
        return torch.cat([point["weight"], point["bias"][:, None]], dim=1).flatten()

    def losses(self, points):
        steps = torch.stack([self._flat(self.weights | point) - self.centre for point in points])
        return (steps @ self.g + ((steps @ self.H) * steps).sum(dim=1) / 2).tolist()


def test_the_dense_loss_is_the_loss():
    problem = problems.linear_regression()
    workspace = Setup(loss="mse").workspace(problem.model, problem.data)
    dense = DenseLoss(problem, workspace.surface)
    point = {name: p + 0.3 for name, p in dense.weights.items()}
    (here, there), (zero, rise) = workspace.perturbed.losses([{}, point]), dense.losses([{}, point])
    assert zero == 0.0
    assert there - here == pytest.approx(rise, rel=1e-12)


@pytest.mark.nightly
@ALL
def test_intervals_cover_the_closed_form_as_often_as_they_say(name):
    problem = problems.linear_regression()
    options = Options(draws=16)
    truth = float(
        forms.forms(problem.model, problem.inputs(), problem.targets(), "mse", options)[name]
    )
    first = Setup(loss="mse", options=options).workspace(problem.model, problem.data)
    with first.surface.preserved():
        plan = first.plan
    covered, off = 0, []
    for seed in range(SEEDS):
        workspace = Setup(loss="mse", options=options, seed=seed).workspace(
            problem.model, problem.data
        )
        workspace._plan = plan
        workspace.perturbed = DenseLoss(problem, workspace.surface)
        found = get(name).function(workspace).whole
        low, high = found.interval
        covered += low <= truth <= high
        off.append((found.value - truth) / truth)
    assert 0.88 * SEEDS <= covered <= 0.995 * SEEDS
    # 1/σ² is the mean curvature over the draws, so it is right on average
    mean = sum(off) / SEEDS
    spread = (sum((value - mean) ** 2 for value in off) / (SEEDS - 1)) ** 0.5
    assert abs(mean) < 4 * spread / SEEDS**0.5


@BOTH
def test_on_a_quadratic_it_is_the_mean_curvature_of_the_draws(name):
    """With the noise known, 1/σ² can be solved for by hand: the search has no error of its own."""
    problem = problems.linear_regression()
    workspace = Setup(loss="mse", options=Options(draws=4)).workspace(problem.model, problem.data)
    with workspace.surface.preserved():
        found = get(name).function(workspace).whole
    H, _ = squared_error(problem.model, problem.inputs(), problem.targets())
    rises = []
    for draw in range(4):
        numbers = normal_numbers(workspace.surface, 0, "noise", draw)
        u = torch.cat([numbers["weight"], numbers["bias"][:, None]], dim=1)
        if name == "pac_bayes.magnitude":
            own = [problem.model.weight, problem.model.bias[:, None]]
            u = u * torch.cat(own, dim=1).detach().abs()
        rises.append(float(u.flatten() @ H @ u.flatten() / 2))
    assert found.value == pytest.approx(sum(rises) / 4 / 0.1, rel=5e-3)
    # 1/σ² is proportional to the mean rise, so its error is known, too; the steepness must be right
    assert found.stderr == pytest.approx(statistics.stdev(rises) / 2 / 0.1, rel=1e-2)


@pytest.mark.parametrize("beyond", [math.inf, 1e300])
def test_a_loss_that_overflows_just_beyond_is_not_taken_for_steep(monkeypatch, beyond):
    """The crossing is at σ = 1; from 1.1 on nothing can be said about the curve."""

    def rises(self, sigma, draws, target="loss"):
        return [0.1 * sigma**2 * (1 + 0.1 * draw) if sigma < 1.1 else beyond for draw in draws]

    monkeypatch.setattr(WeightNoise, "rises", rises)
    problem = problems.linear_regression()
    found = measured(problem.model, problem.data, "pac_bayes.sigma", loss="mse", draws=4)
    assert found.value == pytest.approx(1.15, rel=1e-2)  # of the mean over the draws
    assert int(re.search(r"at (\d+) noise levels", found.text).group(1)) <= 25
    if beyond == math.inf:
        assert found.stderr is None
        assert "does not rise steadily" in found.text


@functools.cache
def confident_and_right(target):
    """Softmax regression that is right about all samples, and its closed forms."""
    problem = problems.softmax_regression()
    with torch.no_grad():
        problem.model.weight.mul_(4)
        x = problem.inputs()
        y = problem.model(x).argmax(dim=1)
    expected = forms.forms(problem.model, x, y, "cross_entropy", Options(target=target))
    return problem.model, [(x, y)], expected


@ALL
@pytest.mark.parametrize("target", ["loss", "error"])
def test_softmax_regression_meets_the_gaussian_integral(name, target):
    model, data, forms_of_both = confident_and_right(target)
    options, expected = {"draws": 64, "target": target}, forms_of_both[name]
    found = measured(model, data, name, **options)
    assert found.settings["target"] == target
    assert f"for the {target}, from 64 draws" in found.text
    assert abs(found.value - float(expected)) <= 4.5 * found.stderr  # standard errors
    assert found.stderr < 0.3 * found.value
    for other in (1, 2):
        again = measured(model, data, name, seed=other, **options)
        assert abs(again.value - float(expected)) <= 4.5 * again.stderr


@ALL
def test_auto_counts_errors_for_cross_entropy_and_the_loss_otherwise(name):
    classes = problems.relu_mlp()
    assert "for the error" in measured(classes.model, classes.data, name).text
    numbers = problems.linear_regression()
    assert "for the loss" in measured(numbers.model, numbers.data, name, loss="mse").text


@ALL
def test_error_needs_classes(name):
    problem = problems.linear_regression()
    text = rf"'{name}' with the option target='error' needs the loss 'cross_entropy'.*Got 'mse'.*"
    with pytest.raises(sl.SpiritlevelError, match=text + "target='loss'"):
        measured(problem.model, problem.data, name, loss="mse", target="error")


@BOTH
def test_a_network_near_chance_is_said_to_have_no_crossing(name):
    problem = problems.relu_mlp()  # its labels are random: noise cannot make it much worse
    found = measured(problem.model, problem.data, name, deviation=0.4)
    assert found.status is sl.results.Status.NOT_CONVERGED
    assert found.stderr is None
    assert "not by the deviation 0.4: the value is an upper bound" in found.text
    assert "near chance" in found.text
    assert "target='loss'" in found.text
    sigma = float(re.search(r"σ = (\S+)", found.text).group(1))
    assert found.value == pytest.approx(sigma**-2, rel=1e-2)


def test_a_loss_that_never_rises_is_said_to_have_no_crossing():
    model = nn.Linear(2, 1).double()
    data = [(torch.ones(4, 2).double(), torch.zeros(4, 1).double())]
    found = measured(model, data, "pac_bayes.sigma", loss=lambda z, y: (0 * z + 1).sum(dim=1))
    assert found.status is sl.results.Status.NOT_CONVERGED
    assert "rises by only 0, not by the deviation 0.1" in found.text
    assert "Use a smaller 'deviation'" in found.text


def test_the_promised_number_of_draws_suffices():
    problem = problems.linear_regression()
    kind = {"loss": "mse", "measures": "pac_bayes.sigma", "rtol": 0.3}
    first = sl.measure(problem.model, problem.data, **kind)["pac_bayes.sigma"]
    assert first.status is sl.results.Status.NOT_CONVERGED
    enough = int(re.search(r"draws=(\d+) would have sufficed", first.text).group(1))
    options = {"draws": enough}
    second = sl.measure(problem.model, problem.data, options=options, **kind)["pac_bayes.sigma"]
    assert second.status is sl.results.Status.OK


def test_a_stricter_limit_bears_less_noise():
    problem = problems.linear_regression()
    values = [
        measured(problem.model, problem.data, "pac_bayes.sigma", loss="mse", deviation=d).value
        for d in (0.05, 0.1, 0.2)
    ]
    # on a quadratic 1/σ² goes as 1/deviation, draw by draw
    assert values[0] == pytest.approx(2 * values[1], rel=1e-2)
    assert values[1] == pytest.approx(2 * values[2], rel=1e-2)


def test_the_bound_is_made_of_the_norm_and_of_the_noise():
    problem = problems.relu_mlp()
    names = ["pac_bayes.sigma", "pac_bayes.bound", "norms.weight"]
    options = {"target": "loss"}
    sl.measure(problem.model, problem.data, measures=names[0])  # finds out about the network
    report = sl.measure(problem.model, problem.data, measures=names, options=options)
    noise, bound, norm = (report[name] for name in names)
    sigma, n = noise.value**-0.5, len(problem.inputs())
    expected = norm.value**2 / (4 * sigma**2) + math.log(n / sigma) + 10
    assert bound.value == pytest.approx(expected, rel=1e-12)
    step = 1e-6 * noise.stderr
    ahead = norm.value**2 * (noise.value + step) / 4 + math.log(noise.value + step) / 2
    here = norm.value**2 * noise.value / 4 + math.log(noise.value) / 2
    # the quotient of differences loses half of the digits
    assert bound.stderr == pytest.approx((ahead - here) * 1e6, rel=1e-4)
    alone = sl.measure(problem.model, problem.data, measures=names[0], options=options)
    assert report.cost == alone.cost  # one search serves both
