"""Networks that bend element by element only have the dense Hessian's trace, κ and ρ, exactly."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from spiritlevel.results import Status
from spiritlevel.testing import references
from zoo import plain, wirings

MEASURES = ["curvature.trace", "relative.kappa", "neuron.rho_sum"]


def new_gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS = {
    "tanh": torch.tanh,
    "sigmoid": nn.Sigmoid(),
    "silu": F.silu,
    "silu by hand": lambda x: x * torch.sigmoid(x),
    "gelu": nn.GELU(),
    "gelu by tanh": nn.GELU("tanh"),
    "gelu by hand": new_gelu,
    "softplus": F.softplus,
    "elu": nn.ELU(0.7),
    "softsign": nn.Softsign(),
    "mish": F.mish,
    "hardswish": F.hardswish,
    "log sigmoid": F.logsigmoid,
    "square": lambda x: x * x,
    "in place": lambda x: torch.tanh_(x * 2.0),
    "a quotient": lambda x: torch.tanh(x) / (1 + x**2),
}


class Net(nn.Module):
    """Two layers with an activation of any kind, a rectifier, and a third layer."""

    def __init__(self, activation):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 5), nn.Linear(5, 4), nn.Linear(4, 3)
        self.activation = activation

    def forward(self, x):
        h = self.activation(self.a(x))
        return self.c(self.b(h).relu() + self.activation(self.b(h)))


class Blocks(nn.Module):
    """Convolutions, BatchNorm with fixed statistics, pooling, a shared activation, residual sums."""

    def __init__(self):
        super().__init__()
        self.stem, self.bn = nn.Conv2d(2, 2, 3, padding=1, bias=False), nn.BatchNorm2d(2)
        self.inner = nn.Conv2d(2, 2, 3, padding=1, groups=2)
        self.activation, self.head = nn.SiLU(), nn.Linear(2, 3)

    def forward(self, x):
        h = F.max_pool2d(self.activation(self.bn(self.stem(x))), 2)
        h = self.activation(h + self.inner(h))
        return self.head(h.mean(dim=(2, 3)))


class Tokens(nn.Module):
    """Positions first, samples second, and an activation that is used for both."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(3, 3), nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x):
        h = F.gelu(self.first(x.transpose(0, 1)))
        return self.head(torch.tanh(self.second(h.sum(dim=0))))


class Twice(nn.Module):
    """One tensor goes through two activations, and one result is used on two ways."""

    def __init__(self):
        super().__init__()
        self.first, self.left, self.head = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        h = self.first(x)
        t = torch.tanh(h)
        return self.head(self.left(t) + t + F.softplus(h))


class Gates(nn.Module):
    """Along either branch of a gate the outputs only bend through the gate's own activation."""

    def __init__(self):
        super().__init__()
        self.gate, self.value, self.head = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(F.silu(self.gate(x)) * self.value(x))


def images(generator):
    return plain.normal(6, 2, 4, 4, generator=generator)


def rows(generator):
    return plain.normal(6, 3, generator=generator)


NETWORKS = {
    **{name: (lambda f=f: Net(f), rows) for name, f in ACTIVATIONS.items()},
    "blocks": (Blocks, images),
    "samples second": (Tokens, lambda g: plain.normal(6, 2, 3, generator=g)),
    "twice": (Twice, rows),
    "gates": (Gates, rows),
    "weight alone": (lambda: nn.Sequential(nn.Linear(3, 4, bias=False), nn.Tanh()), rows),
}


def batches(x, y):
    return [(x[:4], y[:4]), (x[4:], y[4:])]


def check(model, data, mean_loss=F.cross_entropy, rel=1e-10, **options):
    """All rows of trace, κ and ρ are the dense Hessian's."""
    report = sl.measure(model, data, measures=MEASURES, **options)
    truth = references.Truth(model, data, mean_loss)
    size = sum(float(truth.ggn([n]).diagonal().abs().sum()) for n in truth.parameters)
    whole = float(truth.hessian(list(truth.parameters)).trace())
    for name, found in report.items():
        assert found.status is Status.OK, (name, found.text)
        assert found.exact, (name, found.text)
        assert found.quantity == "Hessian"
    trace = report["curvature.trace"]
    assert "of elementwise functions, certified" in trace.text
    assert trace.value == pytest.approx(whole, rel=rel, abs=rel * size)
    for layer, found in report.layers["curvature.trace"].items():
        names = truth.layers()[layer]
        expected = float(truth.hessian(names).trace())
        assert found.value == pytest.approx(expected, rel=rel, abs=rel * size), layer
        assert found.exact
    for layer, (name, view) in references.matrices(model).items():
        H, weight = truth.hessian([name]), truth.parameters[name]
        kappa, rho = references.kappa(H, weight, view), sum(references.rho(H, weight, view))
        assert report.layers["relative.kappa"][layer].value == pytest.approx(kappa, rel=rel)
        assert report.layers["neuron.rho_sum"][layer].value == pytest.approx(rho, rel=rel)
    return report


@pytest.mark.parametrize("name", NETWORKS)
def test_the_hessian_of_every_layer_is_exact(name, generator):
    build, inputs = NETWORKS[name]
    model = plain.drawn(build(), generator)
    y = torch.tensor([0, 1, 2, 2, 0, 1])
    report = check(model, batches(inputs(generator), y % 4))
    ggn = sl.measure(model, batches(inputs(generator), y), measures="curvature.ggn_trace")
    assert ggn["curvature.ggn_trace"].value != pytest.approx(
        report["curvature.trace"].value, rel=1e-3
    )


LOSSES = {
    "mse": (F.mse_loss, lambda g: plain.normal(6, 3, generator=g), {}),
    "bce": (
        F.binary_cross_entropy_with_logits,
        lambda g: (plain.normal(6, 3, generator=g) > 0).double(),
        {},
    ),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_it_is_exact_for_other_losses(loss, generator):
    function, targets, options = LOSSES[loss]
    model = plain.drawn(Net(F.silu), generator)
    data = batches(rows(generator), targets(generator))
    check(model, data, function, loss=loss, **options)


def test_it_is_exact_with_weights_of_classes(generator):
    weight = torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64)
    model = plain.drawn(Net(torch.tanh), generator)
    data = [(rows(generator), torch.tensor([0, 1, 2, 2, 0, 1]))]
    check(
        model,
        data,
        lambda z, y: F.cross_entropy(z, y, weight=weight),
        loss=nn.CrossEntropyLoss(weight=weight),
    )
