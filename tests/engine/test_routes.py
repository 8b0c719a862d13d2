"""What the first samples do not show about a layer is seen when a later sample shows it."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from zoo import references

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
