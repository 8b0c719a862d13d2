"""Weights are found by the operations they enter, whatever code applies them."""

import pytest
import torch
import torch.nn.functional as F

import spiritlevel as sl
from spiritlevel.engine.plan import make_plan
from spiritlevel.model.surface import Surface
from spiritlevel.testing import references
from zoo.functional_base import CLASSES, view_of
from zoo.functional_networks import NETWORKS


@pytest.fixture(params=NETWORKS)
def problem(request, generator):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = NETWORKS[request.param]().double().eval()
    x = model.batch(7, generator)
    y = torch.randint(CLASSES, (7,), generator=generator)
    return model, [(x[:4], y[:4]), (x[4:], y[4:])]


def weight_name(model, row):
    return row if row in dict(model.named_parameters()) else f"{row}.weight"


def test_the_routes_are_the_fast_ones(problem):
    model, data = problem
    surface = Surface(model, data)
    with surface.preserved():
        routes = make_plan(surface).routes
    assert {name for name, route in routes.items() if route == "generic"} == model.generic
    assert set(surface.matrices) == set(model.matrices)


def test_every_value_is_that_of_the_dense_matrix(problem):
    model, data = problem
    names = ["curvature.ggn_trace", "relative.kappa", "neuron.rho_sum"]
    report = sl.measure(model, data, measures=names, method="exact")
    truth = references.Truth(model, data, F.cross_entropy)
    expected = float(truth.ggn(list(truth.parameters)).trace())
    assert report["curvature.ggn_trace"].value == pytest.approx(expected, rel=1e-9)
    for row, kind in model.matrices.items():
        name = weight_name(model, row)
        parameter = truth.parameters[name]
        view = view_of(kind, parameter.shape)
        # Where elementwise functions alone bend, rows are the Hessian's.
        whole = report["relative.kappa"].quantity == "Hessian"
        matrix = truth.hessian([name]) if whole else truth.ggn([name])
        kappa = references.kappa(matrix, parameter, view)
        rho = sum(references.rho(matrix, parameter, view))
        for measure, value in [("relative.kappa", kappa), ("neuron.rho_sum", rho)]:
            found = report.layers[measure][row].value
            assert found == pytest.approx(value, rel=1e-9, abs=1e-15), (measure, row)


@pytest.mark.sampled(2)
def test_estimates_of_the_hessian_hold_its_values(problem):
    model, data = problem
    names = ["curvature.trace", "relative.kappa", "neuron.rho_sum"]
    truth = references.Truth(model, data, F.cross_entropy)
    report = sl.measure(model, data, measures=names, method="sample_probes", max_passes=40)
    expected = [float(truth.hessian(list(truth.parameters)).trace()), 0.0, 0.0]
    for row, kind in model.matrices.items():
        name = weight_name(model, row)
        parameter = truth.parameters[name]
        view = view_of(kind, parameter.shape)
        block = truth.hessian([name])
        expected[1] += references.kappa(block, parameter, view)
        expected[2] += sum(references.rho(block, parameter, view))
    for measure, value in zip(names, expected, strict=True):
        found = report[measure]
        if found.exact:
            assert found.value == pytest.approx(value, rel=1e-9), measure
        else:
            assert abs(found.value - value) < 5 * found.stderr, measure  # a fixed seed


def test_efficientnet_from_pypi(generator):
    """Its convolutions are a subclass that pads by itself; 49 of 50 weights are theirs."""
    package = pytest.importorskip("efficientnet_lite_pytorch")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = package.EfficientNet.from_name("efficientnet-lite0", num_classes=CLASSES).eval()
    x = torch.randn(4, 3, 64, 64, generator=generator)
    names = ["curvature.ggn_trace", "relative.kappa"]
    report = sl.measure(model, (x, torch.arange(4) % 3), measures=names, method="exact")
    assert report["relative.kappa"].settings["weights"] == "50 of 50"
    assert sl.preflight(model, (x, torch.arange(4) % 3)).slow_parameters == ()
    trace, kappa = 0.0, 0.0
    for sample in x:
        outputs = model(sample[None])[0]
        p = outputs.detach().softmax(dim=0)
        A = torch.diag(p) - p[:, None] * p
        rows = [
            torch.autograd.grad(z, list(model.parameters()), retain_graph=True) for z in outputs
        ]
        for module in model.modules():
            for w in module.parameters(recurse=False):
                index = next(i for i, each in enumerate(model.parameters()) if each is w)
                G = torch.stack([row[index] for row in rows])
                trace += float(torch.einsum("ij,ip,jp->", A, G.flatten(1), G.flatten(1))) / len(x)
                if w.dim() > 1:
                    groups = getattr(module, "groups", 1)
                    W = w.detach().reshape(groups, len(w) // groups, -1)
                    WG = torch.einsum("gor,igoc->igrc", W, G.reshape(CLASSES, *W.shape)).flatten(1)
                    kappa += float(torch.einsum("ij,ip,jp->", A, WG, WG)) / len(x)
    # float32, through 50 layers
    assert report["curvature.ggn_trace"].value == pytest.approx(trace, rel=1e-4)
    assert report["relative.kappa"].value == pytest.approx(kappa, rel=1e-4)
