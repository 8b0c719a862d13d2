"""Parameters, buffers and layers without entries."""

import copy

import pytest
import torch
from torch import nn

import spiritlevel as sl


class WithNothing(nn.Module):
    """A network with a branch of no features, an unused parameter and a buffer of no entries."""

    def __init__(self, plain):
        super().__init__()
        self.nothing = nn.Parameter(torch.zeros(0, 4))
        self.register_buffer("none", torch.zeros(0))
        self.to_none, self.from_none = nn.Linear(4, 0), nn.Linear(0, 3)
        self.plain = plain
        nn.init.zeros_(self.from_none.bias)
        self.from_none.requires_grad_(False)

    def forward(self, x):
        return self.plain(x) + self.from_none(self.to_none(x)) + self.nothing.sum()


def test_the_values_are_those_without_them():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    data = torch.randn(9, 4), torch.randint(3, (9,))
    model = WithNothing(copy.deepcopy(plain))
    expected = sl.measure(plain, data)
    found = sl.measure(model, data)
    for name in ("curvature.trace", "relative.kappa", "neuron.rho_sum", "head.trace"):
        if name in expected:
            assert found[name].value == pytest.approx(expected[name].value, rel=1e-5)
    assert sl.eigenvalues(model, data, rtol=1e-4).values[0] == pytest.approx(
        sl.eigenvalues(plain, data, rtol=1e-4).values[0], rel=1e-4
    )
    assert sl.audit(model, data) is not None


def test_the_bias_of_a_layer_without_inputs_is_measured():
    torch.manual_seed(0)
    model = WithNothing(nn.Linear(4, 3)).double()
    model.from_none.requires_grad_(True)
    x, y = torch.randn(9, 4, dtype=torch.float64), torch.randint(3, (9,))
    p = model(x).softmax(dim=1)
    truth = (p * (1 - p)).sum(dim=1).mean().item()
    found = sl.measure(model, (x, y), measures="curvature.trace")
    assert found.layers["curvature.trace"]["from_none"].value == pytest.approx(truth, rel=1e-9)


def test_empty_batches_count_for_nothing():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    x, y = torch.randn(9, 4), torch.randint(3, (9,))
    whole = sl.measure(model, (x, y), measures="curvature.trace")["curvature.trace"].value
    data = [(x[:0], y[:0]), (x, y), (x[:0], y[:0])]
    parts = sl.measure(model, data, measures="curvature.trace")["curvature.trace"].value
    assert parts == pytest.approx(whole, rel=1e-6)
