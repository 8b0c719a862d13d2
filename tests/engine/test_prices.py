"""The price of a call: said beforehand, kept to, and what it leaves out is named."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from spiritlevel.engine.prices import Price, Prices
from spiritlevel.ground.errors import SpiritlevelError

COUNT = 48


class Block(nn.Module):
    """A smooth network above 20,000 weights: attention over 6 positions, and GELU."""

    def __init__(self, width=64):
        super().__init__()
        self.embed, self.norm = nn.Linear(6, width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        x = self.embed(x.unflatten(1, (6, 6)))
        z = self.norm(x)
        scores = self.query(z) @ self.key(z).mT / 7
        x = x + scores.softmax(dim=-1) @ self.value(z)
        x = x + self.down(F.gelu(self.up(x)))
        return self.head(x.mean(dim=1))


def rectified(classes):
    return nn.Sequential(
        nn.Linear(36, 96),
        nn.ReLU(),
        nn.Linear(96, 150),
        nn.ReLU(),
        nn.Linear(150, classes),
    )


def with_batchnorm():
    return nn.Sequential(
        nn.Unflatten(1, (1, 6, 6)),
        *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(288, 5)),
    )


NETWORKS = {
    "exact": lambda: rectified(5),
    "convolutions": with_batchnorm,
    "many classes": lambda: rectified(40),
    "smooth": Block,
}


@pytest.fixture(scope="module")
def problems():
    """Networks that have begun to learn their data."""
    made = {}
    for name, make in NETWORKS.items():
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(COUNT, 36, generator=generator)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = make()
        classes = 40 if name == "many classes" else 5
        y = torch.randint(classes, (COUNT,), generator=generator)
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for _ in range(30):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        made[name] = model.eval(), (x, y)
    return made


def counted(report):
    """By hand: a forward is a third of a forward-backward, a product four of them."""
    cost = report.cost
    return (cost.forwards / 3 + cost.backwards * 2 / 3 + cost.products * 4 / 3) / COUNT


@pytest.mark.parametrize("name", NETWORKS)
def test_the_price_said_beforehand_is_that_counted(problems, name):
    model, data = problems[name]
    told = []
    said = sl.preflight(model, data).forward_backwards
    report = sl.measure(model, data, progress=lambda *step: told.append(step))
    # a typical number of probes stands for those that are drawn
    factor = 2.5 if name == "many classes" else 1.5
    assert said / factor <= counted(report) <= factor * said
    assert f"about {said:.2g} forward-backwards" in told[0][2]
    assert told[0][0] == 0
    assert f"about {said:.2g} forward-backwards" in str(sl.preflight(model, data))


@pytest.mark.parametrize("budget", [2.0, 6.0, 9.0, 14.0, 20.0, 40.0])
@pytest.mark.parametrize("name", ["exact", "many classes", "smooth"])
def test_the_budget_is_kept(problems, name, budget):
    model, data = problems[name]
    assert counted(sl.measure(model, data, budget=budget)) <= budget


def test_default_measures_of_a_small_network_have_no_limit_and_others_have(problems):
    model, data = problems["smooth"]
    assert counted(sl.measure(model, data)) <= 20
    assert counted(sl.measure(model, data, budget=math.inf)) > 20
    generator = torch.Generator().manual_seed(0)
    small = nn.Sequential(nn.Linear(36, 20), nn.Tanh(), nn.Linear(20, 5)).eval()
    for parameter in small.parameters():
        parameter.data.normal_(generator=generator).mul_(0.3)
    assert counted(sl.measure(small, data, max_passes=16)) > 15
    assert counted(sl.measure(small, data, max_passes=16, budget=12)) <= 12


def test_what_is_left_out_is_named_with_its_price(problems):
    model, data = problems["smooth"]
    report = sl.measure(model, data, budget=13)
    assert "neuron.rho_sum" not in report
    assert "curvature.trace" in report
    why = report.settings["left_out"]["neuron.rho_sum"]
    assert "the budget of 13. Ask for it by name, or raise the budget" in why
    assert "left out, since the budget is 13 forward-backwards" in str(report)
    assert "neuron.rho_sum (about " in str(report)
    assert "left out: " in str(sl.preflight(model, data, budget=13))
    assert "neuron.rho_sum" in sl.measure(model, data, measures="neuron.rho_sum", rtol=0.3)


def test_a_budget_below_everything_asked_for_is_refused_with_the_price(problems):
    model, data = problems["exact"]
    with pytest.raises(SpiritlevelError, match=r"would cost about 3\.8 .* budget of 1\."):
        sl.measure(model, data, measures="curvature.trace", budget=1)
    found = sl.measure(model, data, budget=1)
    assert {"head.kappa", "softmax.gini"} <= set(found)
    assert "relative.kappa" not in found


def test_values_within_a_budget_agree_with_those_without(problems):
    model, data = problems["smooth"]
    few = sl.measure(model, data, budget=20)
    many = sl.measure(model, data, budget=math.inf)
    for name in ("curvature.trace", "relative.kappa", "scaled.trace"):
        errors = math.hypot(few[name].stderr, many[name].stderr)
        assert abs(few[name].value - many[name].value) <= 4 * errors, name
    fewer = sl.measure(model, data, budget=13)
    coarse = [m for m in fewer.values() if "The budget of 13 forward-backwards allows" in m.text]
    assert coarse
    assert all("asked for ±5.0%" in m.text for m in coarse)
    for name in ("head.trace", "head.kappa", "softmax.gini"):
        assert few[name].value == many[name].value


def test_parts_that_use_the_same_rows_are_paid_once():
    trace = Price(("a.trace",), 4.0, 8.0, "trace")
    other = Price(("b.trace",), 4.0, 8.0, "trace")
    kappa = Price(("c.kappa",), 4.0, 8.0, "kappa")
    both = Prices(1.0, "columns", (trace, other, kappa)).within(9.5)
    assert both.left_out == {}
    assert [part.measures for part in both.parts] == [("a.trace",), ("c.kappa",), ("b.trace",)]
    assert both.likely == pytest.approx(9.5)
    neither = Prices(1.0, "columns", (trace, other)).within(3.0)
    assert set(neither.left_out) == {"a.trace", "b.trace"}


@pytest.mark.parametrize("budget", [0, -1, "20", True])
def test_a_budget_is_a_positive_number(problems, budget):
    model, data = problems["exact"]
    with pytest.raises(SpiritlevelError, match="The 'budget' argument of measure must be"):
        sl.measure(model, data, budget=budget)
