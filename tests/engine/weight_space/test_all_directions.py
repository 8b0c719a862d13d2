"""Networks so small that a product with every direction costs less than the probes: exact."""

import math
import re
import statistics

import pytest
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from spiritlevel.engine.weight_space.probes import CLUSTERS, PILOT
from spiritlevel.testing import references
from zoo.plain import classes, network, random

pytestmark = pytest.mark.usefixtures("no_elements")

NAMES = ["curvature.trace", "relative.kappa", "relative.kappa_std", "scaled.trace"]
NAMES += ["neuron.rho_sum", "neuron.rho_max"]
SIZES = (4, 6, 3)
BENT = 4 * 6 + 6  # weights and biases of the layer below the activation


def problem(sizes=SIZES, n=20):
    return network(nn.Tanh, sizes), (random(n, sizes[0]), classes(n, sizes[-1]))


def dense(model, data):
    """By the dense Hessian: each measure as a sum over the two layers."""
    truth = references.Truth(model, [data], F.cross_entropy)
    found = dict.fromkeys(NAMES, 0.0)
    found["curvature.trace"] = float(truth.hessian(list(truth.parameters)).trace())
    for layer in ("0", "2"):
        module = model.get_submodule(layer)
        H, view = truth.hessian([f"{layer}.weight"]), references.matrix_view(module)
        neurons = [float(value) for value in references.rho(H, module.weight, view)]
        found["relative.kappa"] += references.kappa(H, module.weight, view)
        found["scaled.trace"] += float(module.weight.detach().square().sum() * H.trace())
        found["neuron.rho_sum"] += sum(neurons)
        found["neuron.rho_max"] = max(found["neuron.rho_max"], *neurons)
    return found


def test_every_measure_is_the_dense_hessians():
    model, data = problem()
    report = sl.measure(model, data, measures=NAMES)
    expected = dense(model, data)
    for name in set(NAMES) - {"relative.kappa_std"}:  # held to others in test_standardized.py
        assert report[name].exact, name
        assert report[name].value == pytest.approx(expected[name], rel=1e-9), name
        assert report[name].status is sl.results.Status.OK
    text = (
        f"a Hessian product in each of {BENT} directions: not certified for '0.weight' and 1 more"
    )
    assert report["curvature.trace"].text == text
    assert report["relative.kappa_std"].exact


def test_layers_are_exact_too():
    model, data = problem()
    truth = references.Truth(model, [data], F.cross_entropy)
    layers = sl.measure(model, data, measures="curvature.trace").layers["curvature.trace"]
    for layer in ("0", "2"):
        expected = float(truth.hessian([f"{layer}.weight", f"{layer}.bias"]).trace())
        assert layers[layer].exact
        assert layers[layer].value == pytest.approx(expected, rel=1e-9)
    neurons = sl.neurons(model, data, layers="0")["0"]
    H, module = truth.hessian(["0.weight"]), model.get_submodule("0")
    view = references.matrix_view(module)
    assert neurons.exact
    assert neurons.values.tolist() == pytest.approx(
        [float(value) for value in references.rho(H, module.weight, view)], rel=1e-9
    )


def test_the_sampling_error_is_the_spread_of_parts_of_the_data():
    model, (x, y) = problem(n=64)
    layer = sl.measure(model, (x, y), measures="curvature.trace").layers["curvature.trace"]["0"]
    names = ["0.weight", "0.bias"]
    by_part = [
        float(references.Truth(model, [part], F.cross_entropy).hessian(names).trace())
        for part in zip(x.split(64 // CLUSTERS), y.split(64 // CLUSTERS), strict=True)
    ]
    expected = statistics.stdev(by_part) / math.sqrt(CLUSTERS)
    assert layer.value == pytest.approx(statistics.mean(by_part), rel=1e-9)
    assert layer.data_stderr == pytest.approx(expected, rel=1e-6)


def test_in_a_larger_one_only_where_probes_would_cost_more():
    """More than a pilot's directions: a few probes are tried first."""
    model, data = problem((4, 16, 3))
    bent = 4 * 16 + 16
    assert bent > PILOT
    loose = sl.measure(model, data, measures="curvature.trace", rtol=0.9)["curvature.trace"]
    assert not loose.exact
    assert loose.status is sl.results.Status.OK
    options = {"rtol": 0.001, "max_passes": bent + 2 * PILOT}
    tight = sl.measure(model, data, measures="curvature.trace", **options)["curvature.trace"]
    assert tight.exact
    assert tight.value == pytest.approx(dense(model, data)["curvature.trace"], rel=1e-9)
    assert tight.cost.products <= len(data[0]) * (bent + 2 * PILOT)


def test_with_too_few_passes_it_says_how_many_would_be_exact():
    model, data = problem((4, 16, 3))
    options = {"rtol": 0.001, "max_passes": 60}
    missed = sl.measure(model, data, measures="curvature.trace", **options)["curvature.trace"]
    assert missed.status is sl.results.Status.NOT_CONVERGED
    (passes,) = re.findall(r"max_passes=(\d+) would have given the exact value", missed.text)
    options["max_passes"] = int(passes)
    assert sl.measure(model, data, measures="curvature.trace", **options)["curvature.trace"].exact


@pytest.mark.parametrize("method", ["split", "hutchinson", "hutch++"])
def test_a_method_that_was_asked_for_stays(method):
    model, data = problem()
    found = sl.measure(model, data, measures="curvature.trace", method=method)["curvature.trace"]
    assert "directions: not certified" not in found.text
    assert "probes" in found.text
