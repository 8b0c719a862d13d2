"""Leading columns and probes of the rest, against the dense Gauss–Newton matrix."""

import math
import re

import pytest
import torch
from torch import nn

import spiritlevel as sl
from spiritlevel.engine.data_pass import NEEDS
from spiritlevel.engine.sweep.leading import largest_excess
from spiritlevel.measures.setup import Setup
from zoo.dense_problem import DenseProblem
from zoo.plain import after_training, classes, network, random

C, N = 30, 40
TRACE = "curvature.trace"


def trained(steps, *, shift=0):
    net, x, y = network(nn.ReLU, (6, 12, C)), random(N, 6), classes(N, C)
    net = after_training(net, x, y, steps) if steps else net
    return DenseProblem(net, x, (y + shift) % C)


@pytest.fixture(scope="module", params=["untrained", "confident", "wrongly confident"])
def problem(request):
    steps = 0 if request.param == "untrained" else 300
    return trained(steps, shift=request.param == "wrongly confident")


@pytest.mark.parametrize("leading", [0, 1, 2, 4, 8, 28])
def test_mean_and_variance_over_seeds(problem, leading):
    """Every split has the mean of the dense GGN, and the variance that its Gram matrices say."""
    truth = float(problem.truth.ggn(problem.names).trace())
    M = problem._forms["trace"].sum(dim=0)[:, leading:, leading:]
    off = M.square().sum() - M.diagonal(dim1=1, dim2=2).square().sum()
    variance = max(float(2 * off), 0.0) / N**2
    work = Setup().workspace(problem.model, (problem.x, problem.y))
    work.want(NEEDS["trace"])
    with work.surface.preserved():
        run = work._run(NEEDS["trace"], work._probes(range(400), leading))
    (rows,) = [run.sweep.kinds["trace"]]
    whole = dict.fromkeys(rows.between.index, 1.0)
    found = rows.estimate(whole, 400)
    value = rows.of_leading(whole) + found.value
    # 4.5 standard errors of the mean, and of a variance from 400 skewed values of 40 samples
    assert abs(value - truth) <= 4.5 * math.sqrt(variance / 400) + 1e-10 * truth
    assert 400 * found.variance == pytest.approx(variance, rel=0.3, abs=1e-20 * truth**2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rtol", [0.05, 0.01])
@pytest.mark.parametrize("kind", ["trace", "kappa"])
def test_coverage(problem, kind, rtol):
    """Of 200 intervals of 95 % at least 90 % hold the truth, whichever way was chosen."""
    precision = {"method": "output_probes", "rtol": rtol, "max_passes": 1000}
    truth = problem.value(kind, "GGN")
    found = [problem.rows(kind, seed, **precision).result().estimate for seed in range(200)]
    hits = sum(abs(each.value - truth) <= each.half_width(0.95) for each in found)
    assert hits >= 180
    assert all(each.within(rtol, 0.95) for each in found)


def test_confident_network_takes_a_handful_of_passes():
    net, x, y = network(nn.ReLU, (20, 40, 50)), random(64, 20), classes(64, 50)
    net = after_training(net, x, y, 300)
    exact = sl.measure(net, (x, y), measures=TRACE, method="exact")[TRACE].value
    for method in ("auto", "output_probes"):
        found = sl.measure(net, (x, y), measures=TRACE, rtol=0.01, method=method)[TRACE]
        assert re.match(r"\d+ leading columns? exactly and \d+ output probes for 49", found.text)
        assert found.value == pytest.approx(exact, rel=0.015)
        assert found.cost.backwards <= 16 * 64


def test_how_the_data_is_divided_does_not_matter():
    problem = trained(300)
    x, y = problem.x, problem.y
    asked = {"measures": [TRACE, "relative.kappa", "neuron.rho_sum"], "rtol": 0.01}
    one = sl.measure(problem.model, (x, y), method="output_probes", **asked)
    cut = [(x[:7], y[:7]), (x[7:8], y[7:8]), (x[8:], y[8:])]
    other = sl.measure(problem.model, cut, method="output_probes", **asked)
    assert "leading column" in one[TRACE].text
    for name in asked["measures"]:
        assert one[name].text == other[name].text
        assert one[name].value == pytest.approx(other[name].value, rel=1e-11)
        assert one[name].stderr == pytest.approx(other[name].stderr, rel=1e-6)


def test_the_worst_case_of_a_few_probes():
    """Squares of normal numbers: a mean of few is too small by more in one case of 40 at most."""
    draw = torch.Generator().manual_seed(0)
    for count in (2, 3, 4, 8, 16):
        means = torch.randn(100_000, count, generator=draw).square().mean(dim=1)
        assert float((means * (1 + largest_excess(count)) < 1).double().mean()) <= 0.027


def of_a_thousand_classes(steps):
    """A network of one hidden layer, its data, and Tr GGN in closed form.

    With J the derivative of the scores: J Jᵀ of the last layer is (‖h‖² + 1)·1, and that of the
    first (‖x‖² + 1)·V D Vᵀ, where D says which units are on.
    """
    net, x, y = network(nn.ReLU, (8, 16, 1000)), random(32, 8), classes(32, 1000)
    net = after_training(net, x, y, steps) if steps else net
    with torch.no_grad():
        h, V = net[1](net[0](x)), net[2].weight
        p = net(x).softmax(dim=1)
        lifted = torch.einsum("nc,cj->nj", p, V)
        of_units = torch.einsum("nc,cj->nj", p, V.square()) - lifted.square()
        gini = (p * (1 - p)).sum(dim=1)
        first = (x.square().sum(dim=1) + 1) * (of_units * (h > 0)).sum(dim=1)
        return net, (x, y), float(((h.square().sum(dim=1) + 1) * gini + first).mean())


@pytest.mark.parametrize(("steps", "rtol", "most"), [(0, 0.1, 10), (300, 0.02, 16)])
def test_a_thousand_classes(steps, rtol, most):
    net, data, truth = of_a_thousand_classes(steps)
    found = sl.measure(net, data, measures=TRACE, rtol=rtol)[TRACE]
    assert ("leading column" in found.text) == (steps > 0)
    assert found.stderr <= rtol * truth
    assert abs(found.value - truth) <= 4 * found.stderr  # once in 15,000 times by chance
    assert found.cost.backwards <= most * len(data[0])


@pytest.mark.nightly
@pytest.mark.parametrize(("steps", "rtol"), [(0, 0.1), (300, 0.02)])
def test_coverage_of_a_thousand_classes(steps, rtol):
    """200 seeds; 95 % minus three standard deviations of 200 draws are 90 %."""
    net, data, truth = of_a_thousand_classes(steps)
    found = [sl.measure(net, data, measures=TRACE, rtol=rtol, seed=n)[TRACE] for n in range(200)]
    assert sum(low <= truth <= high for low, high in (m.interval for m in found)) >= 180
