"""Tensors that a model keeps on its modules: a measurement neither uses old ones nor leaves any."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from spiritlevel.testing import references

PLACES = torch.tensor([0, 1, 1, 0])


class Table(nn.Module):
    """Adds a table made of a weight."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 3)
        self.bias = nn.Parameter(torch.randn(2))

    def table(self):
        return self.bias[PLACES]

    def forward(self, x):
        return self.last(torch.tanh(self.first(x) + self.table()))


class Cached(Table):
    """Makes it once, as LeViT does in eval mode, and keeps more than that."""

    def __init__(self):
        super().__init__()
        self.tables, self.state, self.steps, self.calls = {}, None, torch.zeros(1), 0

    def table(self):
        if "cpu" not in self.tables:
            self.tables["cpu"] = super().table()
        return self.tables["cpu"]

    def forward(self, x):
        self.calls += 1
        self.steps += 1
        self.state = super().forward(x)
        if len(x) > 3:  # not in the first call
            self.last_rows = [self.state[-1]]
        return self.state


@pytest.fixture
def measured(generator):
    x = torch.randn(7, 3, generator=generator, dtype=torch.float64)
    models = []
    for kind in (Table, Cached):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            models.append(kind().double().eval())
    return *models, (x, torch.arange(7) % 3)


def test_a_table_of_one_call_is_not_used_in_the_next(measured):
    plain, model, data = measured
    truth = references.Truth(plain, [data], F.cross_entropy)
    names = list(truth.parameters)
    found = sl.measure(model, data, measures="curvature.ggn_trace", method="exact")
    assert found["curvature.ggn_trace"].exact
    expected = float(truth.ggn(names).trace())
    assert found["curvature.ggn_trace"].value == pytest.approx(expected, rel=1e-10)
    largest = float(torch.linalg.eigvalsh(truth.hessian(names))[-1])
    assert sl.eigenvalues(model, data, rtol=1e-6).values[0] == pytest.approx(largest, rel=1e-6)


def test_what_a_call_leaves_on_the_modules_is_taken_back(measured):
    _, model, data = measured
    kept = model.steps
    sl.measure(model, data, measures=["curvature.trace", "relative.kappa"], max_passes=2)
    assert model.tables == {}
    assert model.state is None
    assert not hasattr(model, "last_rows")
    assert model.steps is kept
    assert float(kept) == 0
    assert model.calls > 0  # a number is the user's own affair
    model(data[0][:1])
    before = model.tables["cpu"], model.state
    sl.measure(model, data, measures="curvature.ggn_trace")
    assert (model.tables["cpu"], model.state) == before
