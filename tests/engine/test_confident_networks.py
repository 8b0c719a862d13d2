"""Networks whose loss is near or below the square of the precision, on every path of derivatives.

The truth is the same network in float64, its loss written as log(1 + Σ exp(z_c − z_y)), which has
no difference of numbers next to 1: dense, by double backward through plain operations.
"""

import copy
import functools

import pytest
import torch
from torch import nn

import spiritlevel as sl
from spiritlevel.engine.weight_space.parameter_space import ParameterSpace
from spiritlevel.engine.weight_space.perturbed import PerturbedLoss
from spiritlevel.engine.weight_space.products import Products, Request
from spiritlevel.model.surface import Surface
from spiritlevel.testing import references

pytestmark = pytest.mark.sampled(2)  # the others at night

CLASSES = 3
LEVELS = {  # loss by type, and the error that products may have
    torch.float64: ((1e-3, 1e-10, 1e-14, 1e-17, 1e-30), 1e-12),
    torch.float32: ((1e-2, 1e-7, 1e-12), 1e-5),
}
CASES = [(level, dtype) for dtype, (levels, _) in LEVELS.items() for level in levels]


def logistic(z, y):
    gaps = (z - z.gather(1, y[:, None])).scatter(1, y[:, None], -torch.inf)
    return torch.log1p(gaps.exp().sum(dim=1)).mean()


# A difference has an error of its step squared, and rounding over the step.
METHODS = {"reverse": 1.0, "forward": 1.0, "difference": 1e5}


@functools.cache
def problem(level, dtype):
    """A network that is right everywhere, with this loss; its data; and its truths in float64."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, CLASSES)]
        model, x = nn.Sequential(*layers).double(), torch.randn(300, 4, dtype=torch.float64)
    with torch.no_grad():  # the clearest of each class: outputs of moderate size are enough then
        top = model(x).topk(2, dim=1)
        margins, classes = top.values[:, 0] - top.values[:, 1], top.indices[:, 0]
        parts = [(margins * (classes == c)).topk(4).indices for c in range(CLASSES)]
    x, y = x[torch.cat(parts)], classes[torch.cat(parts)]
    low, high = 0.0, 1e5  # what the last layer is multiplied by
    for _ in range(80):
        middle = (low + high) / 2
        is_less = float(logistic(scaled(model, middle)(x), y).detach()) < level
        low, high = (low, middle) if is_less else (middle, high)
    model, x = scaled(model, low).to(dtype), x.to(dtype)
    wide = copy.deepcopy(model).double()
    return model, (x, y), references.Truth(wide, [(x.double(), y)], logistic)


def scaled(model, factor):
    model = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model[2].parameters():
            parameter *= factor
    return model


def hessian(truth):
    return truth.hessian(list(truth.parameters))


def assert_within(found, wanted, rtol):
    """Relative to the whole, not to each entry."""
    found, wanted = (torch.as_tensor(v, dtype=torch.float64) for v in (found, wanted))
    assert float((found - wanted).norm()) <= rtol * float(wanted.norm())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("level", "dtype"), CASES, ids=str)
def test_products(level, dtype, method):
    model, data, truth = problem(level, dtype)
    surface = Surface(model, [data])
    space = ParameterSpace(surface)
    vectors = torch.randn(2, space.size, generator=torch.Generator().manual_seed(1), dtype=dtype)
    operators = ("hessian", "residual", "ggn")
    with surface.preserved():
        products = Products(surface, chunk=8, method=method)
        found = products.multiply([Request(name, space, vectors) for name in operators])
    names, tolerance = list(space.names), LEVELS[dtype][1]
    matrices = [truth.hessian(names), truth.hessian(names) - truth.ggn(names), truth.ggn(names)]
    for values, matrix in zip(found, matrices, strict=True):
        # the residual may be smaller than the matrices that it is the difference of
        scale = float((vectors.double() @ truth.hessian(names)).norm())
        wanted = vectors.double() @ matrix
        assert float((values.double() - wanted).norm()) <= METHODS[method] * tolerance * scale


@pytest.mark.parametrize(("level", "dtype"), CASES, ids=str)
def test_spectra(level, dtype):
    model, data, truth = problem(level, dtype)
    exact = torch.linalg.eigvalsh(hessian(truth))
    rtol = 1e-6 if dtype == torch.float64 else 1e-4
    pairs = sl.eigenvalues(model, data, num=2, which="both", rtol=rtol)
    assert all(pairs.converged)
    wanted = exact[[0, 1, -2, -1]]
    error = (torch.tensor(pairs.values, dtype=torch.float64).sort().values - wanted).abs().max()
    assert error <= rtol * exact.abs().max()
    nodes = sl.density(model, data, num_vectors=2, steps=25).nodes
    assert_within(nodes.max(), exact[-1], 1e-4)


@pytest.mark.parametrize(("level", "dtype"), CASES, ids=str)
def test_numbers_of_the_hessian(level, dtype):
    """Every direction is multiplied, so that nothing is left to chance."""
    model, data, truth = problem(level, dtype)
    names = ["curvature.trace", "relative.kappa", "curvature.trace_squared", "curvature.ggn_trace"]
    report = sl.measure(model, data, measures=names, max_passes=200, rtol=1e-9)
    H, G = hessian(truth), truth.ggn(list(truth.parameters))
    rtol = 100 * LEVELS[dtype][1]
    assert_within(report["curvature.trace"].value, H.trace(), rtol)
    assert_within(report["curvature.trace_squared"].value, H.square().sum(), rtol)
    assert_within(report["curvature.ggn_trace"].value, G.trace(), rtol)
    assert_within(report["relative.kappa"].value, kappa(truth), rtol)


def kappa(truth):
    total = 0.0
    for name, weight in truth.parameters.items():
        if weight.dim() == 2:
            block = truth.hessian([name]).reshape(*weight.shape, *weight.shape)
            total += float(torch.einsum("ab,aibi->", weight @ weight.T, block))
    return total


@pytest.mark.parametrize("method", ["sample_probes", "split", "hutch++"])
@pytest.mark.parametrize(("level", "dtype"), CASES, ids=str)
def test_probes(level, dtype, method):
    model, data, truth = problem(level, dtype)
    trace = sl.measure(
        model, data, measures="curvature.trace", method=method, rtol=0.01, max_passes=60
    )["curvature.trace"]
    allowed = 4 * (trace.stderr or 0.0) + 1e-6 * abs(trace.value)
    assert abs(trace.value - float(hessian(truth).trace())) <= allowed
    assert (trace.stderr or 0.0) <= 0.05 * abs(trace.value)


@pytest.mark.parametrize(("level", "dtype"), CASES, ids=str)
def test_loss_gradient_and_what_follows_from_them(level, dtype):
    model, data, truth = problem(level, dtype)
    surface = Surface(model, [data])
    with surface.preserved():
        perturbed = PerturbedLoss(surface, chunk=8, gradient_chunk=8)
        here = perturbed.loss_and_gradient({})
        assert_within(perturbed.losses([{}])[0], here.loss, 1e-12)
    weights = [p.clone().requires_grad_() for p in truth.model.parameters()]
    outputs = torch.func.functional_call(
        truth.model, dict(zip(truth.parameters, weights, strict=True)), (truth.inputs,)
    )
    loss = logistic(outputs, truth.targets)
    slopes = torch.autograd.grad(loss, weights)
    assert_within(here.loss, loss.detach(), LEVELS[dtype][1])
    flat = torch.cat([slope.flatten() for slope in slopes])
    assert_within(torch.cat([g.flatten() for g in here.gradient.values()]), flat, LEVELS[dtype][1])


@pytest.mark.parametrize("level", LEVELS[torch.float64][0])
def test_the_diagonal(level):
    model, data, truth = problem(level, torch.float64)
    found = sl.diagonal(model, data, kind="ggn")
    wanted = truth.ggn(list(truth.parameters)).diagonal()
    assert_within(torch.cat([part.flatten() for part in found.values.values()]), wanted, 1e-12)


@pytest.mark.parametrize("level", LEVELS[torch.float64][0])
def test_a_layers_output(level):
    """Hessian in the outputs of the first layer, one sample after another."""
    model, data, truth = problem(level, torch.float64)
    found = sl.activation_curvature(model, data, layer="0")
    x, y = data
    total = 0.0
    for n in range(len(x)):
        inner = truth.model[0](x[n : n + 1]).detach()
        label = y[n : n + 1]
        matrix = torch.autograd.functional.hessian(
            lambda a, label=label: logistic(truth.model[1:](a), label), inner
        ).reshape(5, 5)
        total += float(matrix.trace()) / len(x)
    assert_within(found.diagonal.sum(), total, 1e-12)
