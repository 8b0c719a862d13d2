"""Rows of a table that are added up in bags, called as functions: which way, and κ of which matrix.

The truth is a dense Hessian of the same network with the bags written out row by row, since torch
has no second derivative of its own bags.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from spiritlevel.engine.plan import make_plan
from spiritlevel.model.layers import Layout
from spiritlevel.model.layers.embedding import BagRule
from spiritlevel.model.operations import find_operations
from spiritlevel.model.surface import Surface

TOKENS, WIDTH, LENGTH, CLASSES, SAMPLES = 5, 4, 6, 3, 4
CUTS = {
    "equal": (0, 3),
    "unequal": (0, 2),
    "with an empty bag": (0, 0, 5),
}
CASES = {  # how the bags are cut, the options of the call, and whether the fast way is taken
    "mean": ("unequal", {}, True),
    "sum": ("unequal", {"mode": "sum"}, True),
    "an empty one": ("with an empty bag", {}, True),
    "padding": ("unequal", {"padding_idx": 1}, True),
    "padding at the end": ("equal", {"padding_idx": -1, "mode": "sum"}, True),
    "last offset": ("unequal", {"include_last_offset": True}, True),
    "weights": ("unequal", {"mode": "sum", "weights": True}, True),
    "weights and padding": ("equal", {"mode": "sum", "weights": True, "padding_idx": 0}, True),
    "maximum": ("unequal", {"mode": "max"}, False),
    "learned weights": ("unequal", {"mode": "sum", "weights": "learned"}, True),
}


class Table(nn.Module):
    """A weight of a module that torch does not know."""

    def __init__(self, values):
        super().__init__()
        self.weight = nn.Parameter(values)


class Bags(nn.Module):
    """Bags of a bare table, a rectifier, and a head."""

    def __init__(
        self, cuts, mode="mean", padding_idx=None, include_last_offset=False, weights=None
    ):
        super().__init__()
        self.cuts, self.mode, self.padding = CUTS[cuts], mode, padding_idx
        self.last, self.slowly = include_last_offset, False
        generator = torch.Generator().manual_seed(3)
        drawn = torch.randn(TOKENS, WIDTH, generator=generator, dtype=torch.float64)
        self.rows = Table(drawn)
        head = torch.randn(CLASSES, len(self.cuts) * WIDTH, generator=generator).double()
        self.head = nn.Parameter(head)
        self.shares = torch.linspace(0.5, 2.0, LENGTH).double() if weights else None
        if weights == "learned":
            self.shares = nn.Parameter(self.shares)

    def forward(self, x):
        add_up = self.written_out if self.slowly else self.called
        return F.linear(add_up(x).reshape(len(x), -1).relu(), self.head)

    def called(self, x):
        starts = (LENGTH * torch.arange(len(x))[:, None] + torch.tensor(self.cuts)).flatten()
        if self.last:
            starts = torch.cat([starts, torch.tensor([x.numel()])])
        shares = None if self.shares is None else self.shares.repeat(len(x))
        return F.embedding_bag(
            x.flatten(),
            self.rows.weight,
            starts,
            mode=self.mode,
            per_sample_weights=shares,
            include_last_offset=self.last,
            padding_idx=self.padding,
        )

    def written_out(self, x):
        skipped = None if self.padding is None else self.padding % TOKENS
        bags = []
        for tokens in x.tolist():
            for start, end in zip(self.cuts, (*self.cuts[1:], LENGTH), strict=True):
                places = [i for i in range(start, end) if tokens[i] != skipped]
                shares = [1.0 if self.shares is None else self.shares[i] for i in places]
                rows = [
                    self.rows.weight[tokens[i]] * s for i, s in zip(places, shares, strict=True)
                ]
                if not rows:
                    bags.append(torch.zeros(WIDTH, dtype=torch.float64))
                    continue
                rows = torch.stack(rows)
                bags.append(
                    rows.amax(dim=0) if self.mode == "max" else getattr(rows, self.mode)(dim=0)
                )
        return torch.stack(bags)


def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(TOKENS, (SAMPLES, LENGTH), generator=generator)
    return x, torch.arange(SAMPLES) % CLASSES


def dense(model):
    """Trace and κ of the table, whose rows are the inputs and whose columns the outputs."""
    model.slowly = True
    x, y = data()

    def loss(table):
        outputs = torch.func.functional_call(model, {"rows.weight": table}, (x,))
        return F.cross_entropy(outputs, y)

    table = model.rows.weight.detach()
    H = torch.autograd.functional.hessian(loss, table)  # (V, d, V, d)
    model.slowly = False
    kappa = torch.einsum("js,jt,vsvt->", table, table, H)
    return float(torch.einsum("vsvs->", H)), float(kappa)


@pytest.mark.parametrize("name", CASES)
def test_bags_against_the_dense_hessian(name):
    cuts, options, fast = CASES[name]
    model = Bags(cuts, **options)
    report = sl.measure(
        model,
        data(),
        measures=["curvature.trace", "relative.kappa"],
        method="exact",
    )
    trace, kappa = dense(model)
    assert report.layers["curvature.trace"]["rows"].value == pytest.approx(trace, rel=1e-12)
    assert report.layers["relative.kappa"]["rows"].value == pytest.approx(kappa, rel=1e-12)
    assert (_route(model) != "generic") is fast


def _route(model):
    surface = Surface(model, data())
    with surface.preserved():
        return make_plan(surface, kappa=True).routes["rows.weight"]


def test_squared_lengths_of_what_goes_into_bags():
    """A bag's input is the sum of its one-hot tokens, each with its coefficient."""
    model, (x, _) = Bags("unequal", mode="sum", weights=True), data()
    (bag,) = (
        each
        for each in find_operations(model(x), {"rows.weight": model.rows.weight}).found
        if isinstance(each.rule, BagRule)
    )
    expected = []
    for tokens in x:
        hot = model.shares.detach()[:, None] * F.one_hot(tokens, TOKENS).double()
        bags = [hot[:2].sum(dim=0), hot[2:].sum(dim=0)]
        expected.append(float(sum(bag.square().sum() for bag in bags)))
    layout = Layout(num_samples=SAMPLES)
    found = bag.rule.squared_inputs(bag.geometry, bag.input, bag.shape, layout)
    assert found.tolist() == pytest.approx(expected, rel=1e-12)
