"""What the first samples do not show about a layer is seen when a later sample shows it."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from spiritlevel.engine import routes
from spiritlevel.testing import references

CLASSES = 3


class Gated(nn.Module):
    """A branch that is closed for samples whose first entry is negative."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, x):
        gate = F.relu(x[:, :1])
        return self.head(x + self.branch(x, gate))

    def branch(self, x, gate):
        raise NotImplementedError


class ReadOutside(Gated):
    """The weight is also read outside of its layer, where the gate is open."""

    def branch(self, x, gate):
        return self.layer(x) + gate * self.layer.weight.sum()


class Replaced(Gated):
    """A layer that does something else than its kind, where the gate is open."""

    def __init__(self):
        super().__init__()
        self.layer.forward = lambda x: F.linear(x, 2 * self.layer.weight, self.layer.bias)

    def branch(self, x, gate):
        return gate * self.layer(x)


@pytest.mark.parametrize("kind", [ReadOutside, Replaced])
def test_a_gate_that_opens_later(kind, generator):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = kind().double()
    x = torch.randn(12, 4, generator=generator, dtype=torch.float64)
    x[:, 0] = x[:, 0].abs() * torch.tensor([-1.0] * 6 + [1.0] * 6)
    y = torch.randint(CLASSES, (12,), generator=generator)
    found = sl.measure(model, (x, y), measures="curvature.trace")["curvature.trace"]
    truth = references.Truth(model, [(x, y)], F.cross_entropy)
    expected = float(truth.hessian(list(truth.parameters)).trace())
    assert found.exact
    assert found.value == pytest.approx(expected, rel=1e-10)


class Table(nn.Module):
    """A bias that a small network makes of the positions, the same for all samples."""

    def __init__(self, inplace=True, factor=1.0):
        super().__init__()
        self.register_buffer("places", torch.randn(1, 2, 5, 3))
        self.first, self.last, self.head = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, CLASSES)
        self.relu = nn.ReLU(inplace)
        if factor != 1.0:  # does something else than its kind
            first = self.first
            first.forward = lambda x: F.linear(x, factor * first.weight, first.bias)

    def forward(self, x):
        table = self.last(self.relu(self.first(self.places)))
        return self.head(x * table.view(-1, 4).mean(dim=0))


class Positions(nn.Module):
    """Linear layers at every position, whose outputs are views that are written in place."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(4, 5), nn.Linear(5, CLASSES)

    def forward(self, x):
        return self.head(F.relu(self.first(torch.stack([x, -2 * x], dim=1)), inplace=True).sum(1))


@pytest.mark.parametrize("sizes", [(3, 1), (1, 1, 1), (4,)], ids=str)
@pytest.mark.parametrize(
    "kind",
    [Table, functools.partial(Table, inplace=False, factor=2.0), Positions],
    ids=["table", "replaced", "positions"],
)
def test_outputs_that_are_written_in_place_and_samples_by_themselves(kind, sizes, generator):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = kind().double()
    data = [
        (
            torch.randn(size, 4, generator=generator, dtype=torch.float64),
            torch.randint(CLASSES, (size,), generator=generator),
        )
        for size in sizes
    ]
    report = sl.measure(model, data, measures=["curvature.ggn_trace", "curvature.trace"])
    truth = references.Truth(model, data, F.cross_entropy)
    for layer, found in report.layers["curvature.ggn_trace"].items():
        names = [name for name in truth.parameters if name.rpartition(".")[0] == layer]
        expected = sum(float(truth.ggn([name]).trace()) for name in names)
        assert found.exact, layer
        assert found.value == pytest.approx(expected, rel=1e-10), layer
    if kind is Positions:  # read off the graph, where no hook of a layer hears of the gradient
        assert report["curvature.trace"].exact
        assert sl.preflight(model, data, measures="curvature.trace").slow_parameters == ()


class Attention(nn.Module):
    """One head of attention, which torch computes in one operation unless told otherwise."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(4, 4) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, CLASSES)

    def forward(self, x):
        split = [each(self.norm(x)).unsqueeze(1) for each in (self.q, self.k, self.v)]
        mixed = F.scaled_dot_product_attention(*split)
        return self.head(x + mixed.squeeze(1).transpose(1, 2).transpose(1, 2)).mean(dim=1)


def test_layouts_are_not_tested_again_because_attention_is_written_out(generator, monkeypatch):
    """Sample probes differentiate twice, which torch's own attention cannot do."""
    tested = []
    real = routes._tested

    def counted(surface, uses, *rest):
        tested.append(len(uses))
        return real(surface, uses, *rest)

    monkeypatch.setattr(routes, "_tested", counted)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Attention().double().eval()
    x = torch.randn(12, 5, 4, generator=generator, dtype=torch.float64)
    data = x, torch.arange(12) % CLASSES
    names = ["curvature.trace", "relative.kappa"]
    asked = {"measures": names, "method": "sample_probes", "max_passes": 200, "rtol": 0.1}
    report = sl.measure(model, data, **asked)
    assert len(tested) == 1  # of the first samples, for the plan
    truth = references.Truth(model, [data], F.cross_entropy)
    expected = float(truth.hessian(list(truth.parameters)).trace())
    found = report["curvature.trace"]
    assert abs(found.value - expected) < 4 * found.stderr


SEEN = routes.Signature(frozenset(["ScaledDotProductFlashAttention", "Addmm"]), ("q", "k"))


@pytest.mark.parametrize(
    ("operations", "layers", "same"),
    [
        (["ScaledDotProductFlashAttention", "Addmm"], ("q", "k"), True),
        (["Bmm", "SafeSoftmax", "Addmm"], ("q", "k"), True),
        (["Bmm", "SafeSoftmax", "Addmm"], ("k", "q"), False),
        (["Bmm", "SafeSoftmax", "Addmm", "Transpose"], ("q", "k"), False),
        (["ScaledDotProductFlashAttention", "Addmm", "Bmm"], ("q", "k"), False),
        (["Bmm", "SafeSoftmax"], ("q", "k"), False),
    ],
)
def test_which_runs_do_the_same(operations, layers, same):
    assert routes.Signature(frozenset(operations), layers).does_as(SEEN) is same
