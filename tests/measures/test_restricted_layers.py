"""`layers=` restricts every Hessian measure to a block: the dense block of the same parameters."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from spiritlevel.testing import references

TRACE, SQUARED, KAPPA = "curvature.trace", "curvature.trace_squared", "relative.kappa"
ENDS = ["curvature.lambda_max", "curvature.lambda_min"]
SCALED = "scaled.lambda_max"
PROBING = ["hutchinson", "hutch++", "split", "auto"]
ROUGHLY = {"rtol": 0.1, "max_passes": 1000}
# the first layer, an inner one, the head, and two that are coupled through the one between them
CHOICES = [["0"], ["2"], ["4"], ["0", "4"]]


def network(activation=nn.Tanh):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Linear(4, 5), activation(), nn.Linear(5, 4), activation(), nn.Linear(4, 3)]
        net = nn.Sequential(*layers).double().eval()
    with torch.no_grad():
        for weight in net.parameters():
            weight.mul_(1.5)
    return net


def data():
    """Labels that the network gives itself, as after training: the Hessian is mostly positive."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8, 4, generator=generator, dtype=torch.float64)
    return x, network()(x).argmax(dim=1)


class Block:
    """The dense Hessian of chosen layers, and every measure read off it by definition."""

    def __init__(self, net, layers):
        self.truth = references.Truth(net, [data()], F.cross_entropy)
        self.net, self.layers = net, layers
        names = self.truth.layers()
        self.matrix = self.truth.hessian([name for layer in layers for name in names[layer]])

    def of_weight(self, layer):
        return self.truth.hessian([f"{layer}.weight"])

    def kappa(self):
        total = 0.0
        for layer in self.layers:
            module = self.net.get_submodule(layer)
            view = references.matrix_view(module)
            total += references.kappa(self.of_weight(layer), module.weight, view)
        return total

    def scaled(self):
        weights = {layer: self.net.get_submodule(layer).weight for layer in self.layers}
        return sum(
            float(w.detach().square().sum() * torch.linalg.eigvalsh(self.of_weight(layer))[-1])
            for layer, w in weights.items()
        )

    def values(self):
        spectrum = torch.linalg.eigvalsh(self.matrix)
        return {
            TRACE: float(self.matrix.trace()),
            SQUARED: float(self.matrix.square().sum()),
            KAPPA: self.kappa(),
            ENDS[0]: float(spectrum[-1]),
            ENDS[1]: float(spectrum[0]),
            SCALED: self.scaled(),
        }


def assert_restricted(report, names, layers, expected, rel):
    for name in names:
        assert report[name].value == pytest.approx(expected[name], rel=rel), name
        assert report[name].quantity == "Hessian", name
        if name in report.layers:
            assert list(report.layers[name]) == layers, name
    assert report.settings["layers"] == layers


def assert_estimated(report, names, layers, net):
    assert all(report[name].status is sl.results.Status.OK for name in names)
    assert report.cost.products > 0 or report.settings["method"] == "output_probes"
    # three standard errors of what was asked for; a fixed seed, so no flicker
    assert_restricted(report, names, layers, Block(net, layers).values(), rel=0.15)


def test_the_blocks_differ():
    """A meta-test: measuring other layers than the chosen ones would be seen."""
    blocks = [Block(network(), layers) for layers in [*CHOICES, ["0", "2", "4"]]]
    found = [block.values() for block in blocks]
    for name in found[0]:
        values = sorted(abs(one[name]) for one in found)
        assert all(b > 1.001 * a for a, b in itertools.pairwise(values)), (
            name
        )  # the ends are exact to 1e-6
    for name in (TRACE, SQUARED, KAPPA):  # by probes: each is far from that of all layers
        assert all(abs(one[name]) < 0.85 * abs(found[-1][name]) for one in found[:-1]), name


@pytest.mark.usefixtures("no_elements")
@pytest.mark.parametrize("layers", CHOICES[1::2], ids="+".join)
@pytest.mark.parametrize("method", PROBING)
def test_trace_and_kappa_by_weight_probes(method, layers):
    net, names = network(), [TRACE, KAPPA]
    report = sl.measure(net, data(), measures=names, layers=layers, method=method, **ROUGHLY)
    assert_estimated(report, names, layers, net)


@pytest.mark.parametrize("layers", CHOICES, ids="+".join)
def test_trace_squared(layers):
    net = network()
    report = sl.measure(net, data(), measures=SQUARED, layers=layers, **ROUGHLY)
    assert_estimated(report, [SQUARED], layers, net)


@pytest.mark.parametrize("layers", CHOICES, ids="+".join)
def test_trace_and_kappa_by_output_probes(layers):
    net, names = network(nn.ReLU), [TRACE, KAPPA]
    options = {"method": "output_probes", **ROUGHLY}
    report = sl.measure(net, data(), measures=names, layers=layers, **options)
    assert_estimated(report, names, layers, net)


@pytest.mark.parametrize("layers", CHOICES, ids="+".join)
def test_eigenvalues(layers):
    net, names = network(), [*ENDS, SCALED]
    report = sl.measure(net, data(), measures=names, layers=layers, rtol=1e-6)
    expected = Block(net, layers).values()
    assert_restricted(report, [ENDS[0], SCALED], layers, expected, rel=1e-6)
    # a smallest eigenvalue near 0 has no digits of its own
    slack = 1e-6 * expected[ENDS[0]]
    assert report[ENDS[1]].value == pytest.approx(expected[ENDS[1]], rel=1e-6, abs=slack)
