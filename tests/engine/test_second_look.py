"""What is called exact is looked at again, and the word is taken back where the two differ."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import spiritlevel as sl
from spiritlevel.engine import routes
from spiritlevel.math.curvature import SoftmaxCurvature
from spiritlevel.model.losses.cross_entropy import CrossEntropy
from spiritlevel.results import Status


class Flipped(nn.Module):
    """A layer that sees the samples in reverse order; outside nothing of it shows."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.last = nn.Linear(4, 3)

    def forward(self, x):
        return self.last(self.first(x.flip(0)).flip(0).relu())


def rolled(model, batch):
    x, y = batch
    return model(x.roll(1, 0)).roll(-1, 0), y


@dataclasses.dataclass(frozen=True)
class Case:
    build: Callable[[], nn.Module]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


CASES = {
    "inside": Case(Flipped),
    "forward": Case(lambda: nn.Linear(3, 3), {"forward": rolled}),  # the layer is the model
}


@pytest.fixture(params=CASES.values(), ids=CASES)
def measured(request, generator):
    """Measures a model that permutes its rows, on two batches."""
    case = request.param
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = case.build().double().eval()
    x = torch.randn(8, 3, generator=generator, dtype=torch.float64)
    y = torch.randint(3, (8,), generator=generator)
    data = [(x[:4], y[:4]), (x[4:], y[4:])]

    def measure(name):
        return sl.measure(model, data, measures=name, method="exact", **case.options)[name]

    return measure


NAMES = ["curvature.trace", "curvature.ggn_trace", "relative.kappa"]


@pytest.fixture
def untested_layouts(monkeypatch):
    """Every layout that a shape allows is believed, so samples get the gradients of others."""

    def believe(surface, uses, candidates, outputs, seed):
        return candidates

    monkeypatch.setattr(routes, "_tested", believe)


@pytest.fixture
def doubled_curvature(monkeypatch):
    """The loss claims twice its own second derivative."""
    curvature = CrossEntropy.curvature

    def doubled(self, outputs, targets):
        once = curvature(self, outputs, targets)
        assert isinstance(once, SoftmaxCurvature)
        return SoftmaxCurvature(once.logits, 2 * once.mass)

    monkeypatch.setattr(CrossEntropy, "curvature", doubled)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_right_is_confirmed(measured, name):
    found = measured(name)
    assert found.status is Status.OK
    assert found.exact


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("untested_layouts")
def test_gradients_of_other_samples_are_noticed(measured, name):
    found = measured(name)
    assert found.status is Status.UNCONFIRMED
    assert not found.exact
    assert "within its batch and" in found.text
    assert "alone" in found.text


@pytest.mark.usefixtures("doubled_curvature")
def test_a_wrong_curvature_of_the_loss_is_noticed(measured):
    found = measured("curvature.trace")
    assert found.status is Status.UNCONFIRMED
    assert not found.exact
    told = re.search(
        r"the gradient changes by (\S+), and the Gauss–Newton matrix says (\S+)", found.text
    )
    assert told is not None
    changes, says = map(float, told.groups())
    assert says == pytest.approx(2 * changes, rel=1e-2)  # differences, shown with four digits


class Faint(nn.Module):
    """A part whose effect on the outputs is below their last digit."""

    def __init__(self):
        super().__init__()
        self.first, self.faint = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.first(x) + 1e-19 * self.faint(x)


@pytest.mark.parametrize("seed", range(3))
def test_a_form_below_what_rounding_leaves_is_no_doubt(generator, seed):
    """Outputs that do not move say 0, and the Gauss–Newton matrix says 1e-38 or so."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = Faint().double().eval()
    x = torch.randn(8, 3, generator=generator, dtype=torch.float64)
    y = torch.randint(3, (8,), generator=generator)
    found = sl.measure(model, (x, y), measures="curvature.trace", method="exact", seed=seed)
    assert found.layers["curvature.trace"]["faint"].value < 1e-30
    assert found["curvature.trace"].status is Status.OK
    assert found["curvature.trace"].exact
