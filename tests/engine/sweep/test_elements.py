"""Networks that bend element by element only have the dense Hessian's trace, κ and ρ, exactly."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from spiritlevel.engine import routes
from spiritlevel.engine.sweep import elements
from spiritlevel.model.elementwise import bend_of
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
    """Convolutions, BatchNorm with fixed statistics, pooling, residual sums."""

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


class Bags(nn.Module):
    """Words in bags, whose sums torch does not differentiate twice."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.EmbeddingBag(5, 4, mode="sum"), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.words(x)))


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
    "bags": (Bags, lambda g: torch.randint(5, (6, 3), generator=g)),
    "at the outputs": (lambda: nn.Sequential(nn.Linear(3, 4, bias=False), nn.Tanh()), rows),
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


@pytest.mark.sampled(2)  # the others at night
@pytest.mark.parametrize("name", NETWORKS)
def test_the_hessian_of_every_layer_is_exact(name, generator):
    build, inputs = NETWORKS[name]
    model = plain.drawn(build(), generator)
    y = torch.tensor([0, 1, 2, 2, 0, 1])
    data = batches(inputs(generator), y)
    hessian = check(model, data)["curvature.trace"].value
    found = sl.measure(model, data, measures="curvature.ggn_trace")["curvature.ggn_trace"]
    truth = references.Truth(model, data, F.cross_entropy)
    assert found.value == pytest.approx(float(truth.ggn(list(truth.parameters)).trace()), rel=1e-10)
    assert abs(hessian - found.value) > 1e-3 * found.value  # the columns matter


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


# -- where the columns would not do ----------------------------------------------------------------


class Gated(nn.Module):
    """A product of two activations, with a layer before it."""

    def __init__(self):
        super().__init__()
        self.first, self.gates, self.head = nn.Linear(3, 4), Gates(), nn.Linear(3, 3)
        self.gates.gate, self.gates.value = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.head(self.gates(self.first(x)))


class ReversedInside(nn.Module):
    """An activation that sees the samples in reverse order."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.first(x).flip(0)).flip(0))


class MixedLater(nn.Module):
    """A softmax takes the place of tanh for inputs above a threshold."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x):
        h = self.first(x)
        return self.head(h.softmax(dim=1) if bool(x.max() > 50) else torch.tanh(h))


class BentWeight(nn.Module):
    """A weight that goes through softplus itself: its elements belong to no sample."""

    def __init__(self):
        super().__init__()
        self.raw, self.head = nn.Parameter(torch.randn(3, 4)), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(x @ F.softplus(self.raw))


BEYOND = {
    "a norm": lambda: nn.Sequential(
        *(nn.Linear(3, 4), nn.Tanh(), nn.LayerNorm(4), nn.Linear(4, 3))
    ),
    "attention": lambda: wirings.Encoder(batch_first=True, norm_first=True),
    "gates of what bends": Gated,
    "reversed inside": ReversedInside,
    "mixed in the second batch": MixedLater,
    "a bent weight": BentWeight,
}


@pytest.mark.parametrize("name", BEYOND)
def test_elsewhere_the_value_stays_the_ggns_or_an_estimate(name, generator):
    model = plain.drawn(BEYOND[name](), generator)
    x = plain.normal(6, 2, 4, generator=generator) if name == "attention" else rows(generator)
    x[4:, 0] += 100.0 if "second" in name else 0.0
    data = batches(x, torch.tensor([0, 1, 2, 2, 0, 1]))
    found = sl.measure(model, data, measures="curvature.trace", method="exact")["curvature.trace"]
    truth = references.Truth(model, data, F.cross_entropy)
    names = list(truth.parameters)
    if name == "mixed in the second batch":
        per_batch = [references.Truth(model, [each], F.cross_entropy) for each in data]
        shares = [len(y) / 6 for _, y in data]
        ggn = sum(
            share * float(each.ggn(names).trace())
            for share, each in zip(shares, per_batch, strict=True)
        )
    else:
        ggn = float(truth.ggn(names).trace())
        assert abs(float(truth.hessian(names).trace()) - ggn) > 1e-3 * ggn
    assert found.status is Status.GGN
    assert not found.exact
    assert found.value == pytest.approx(ggn, rel=1e-9)
    estimated = sl.measure(model, data, measures="curvature.trace", max_passes=8)
    assert "elementwise" not in estimated["curvature.trace"].text


# -- when they are taken ---------------------------------------------------------------------------


def wide(generator):
    """Three layers: 40 elements behind one of them, 30 behind two, so that 34 passes do."""
    layers = [nn.Linear(3, 40), nn.Tanh(), nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 3)]
    model = plain.drawn(nn.Sequential(*layers), generator)
    return model, batches(rows(generator), torch.tensor([0, 1, 2, 2, 0, 1]))


PASSES = 2 + 34  # 2 columns, and 40/3 + 30·2/3 for the elements


@pytest.mark.parametrize(
    ("options", "exact"),
    [
        ({"max_passes": PASSES}, True),
        ({"max_passes": PASSES - 1}, False),
        ({"method": "exact", "max_passes": 1}, True),
        ({"method": "split", "max_passes": 40}, False),
        ({"method": "hutchinson", "max_passes": 40}, False),
        ({"method": "output_probes"}, False),
    ],
    ids=str,
)
def test_they_are_taken_where_the_passes_allow_it(options, exact, generator):
    model, data = wide(generator)
    found = sl.measure(model, data, measures="curvature.trace", rtol=1e-3, **options)
    assert found["curvature.trace"].exact == exact
    text = found["curvature.trace"].text
    assert ("2 columns and 70 of elementwise functions, certified" in text) == exact
    if options.get("max_passes") == PASSES - 1:
        assert f"max_passes={PASSES} would have given the exact value" in text
    told = sl.preflight(model, data, measures="curvature.trace", **options).cost_per_sample
    if exact:
        assert told.backwards == 2 + 70 + 2  # every column counts as a whole pass here
        assert told.products == 0


def test_the_work_is_counted(generator):
    model, data = wide(generator)
    both = [sl.measure(model, data, measures="curvature.trace") for _ in range(2)]
    first, later = (each["curvature.trace"].cost for each in both)
    assert later.backwards == 6 * (2 + 70 + 2)  # nothing is looked at twice
    assert first.products == 0
    looks = both[0].cost.backwards - both[1].cost.backwards
    assert looks < 2 * (2 + 70)  # in which two samples do not have all their columns again


# -- the second look -------------------------------------------------------------------------------


def test_a_wrong_second_derivative_is_noticed(generator, monkeypatch):
    def twice(*arguments):
        right = bend_of(*arguments)
        return dataclasses.replace(right, curvature=2 * right.curvature)

    monkeypatch.setattr(elements, "bend_of", twice)
    model = plain.drawn(Net(torch.tanh), generator)
    data = batches(rows(generator), torch.tensor([0, 1, 2, 2, 0, 1]))
    sl.measure(model, data, measures="curvature.trace", method="split")  # confirms the GGN alone
    found = sl.measure(model, data, measures="curvature.trace")["curvature.trace"]
    assert found.status is Status.UNCONFIRMED
    assert "the Gauss–Newton matrix and the bends of elementwise functions say" in found.text


def test_elements_of_other_samples_are_noticed(generator, monkeypatch):
    monkeypatch.setattr(elements, "rows_follow", lambda *_: True)
    believed = lambda surface, uses, candidates, outputs, seed: candidates  # noqa: E731
    monkeypatch.setattr(routes, "_tested", believed)
    model = plain.drawn(ReversedInside(), generator)
    data = batches(rows(generator), torch.tensor([0, 1, 2, 2, 0, 1]))
    found = sl.measure(model, data, measures="curvature.trace")["curvature.trace"]
    assert found.status is Status.UNCONFIRMED
    assert "within its batch and" in found.text
