"""Adapters that peft did not write: the same two names are enough, however they merge."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import spiritlevel as sl
from spiritlevel.testing import references


class LowRank(nn.Module):
    """A frozen layer and what is added to its weight."""

    def __init__(self, base, rank=1):
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features))
        self.up = nn.Parameter(torch.randn(base.out_features, rank))

    def forward(self, x):
        return self.base_layer(x) + x @ (self.up @ self.down).T


class Adapted(nn.Sequential):
    """Merges in place, as peft does unless it is told not to."""

    def merge_and_unload(self, safe_merge=False):
        layers = []
        for layer in self:
            if isinstance(layer, LowRank):
                layer.base_layer.weight.data += (layer.up @ layer.down).detach()
                layer = layer.base_layer
            layers.append(layer)
        return nn.Sequential(*layers)


@pytest.fixture
def problem():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        head = nn.Linear(3, 2).requires_grad_(False)
        model = Adapted(LowRank(nn.Linear(4, 3)), nn.ReLU(), head).double().eval()
        return model, (torch.randn(9, 4).double(), torch.randint(0, 2, (9,)))


def test_a_merge_in_place_does_not_reach_the_model(problem):
    model, data = problem
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    network = sl.merged(model)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    torch.testing.assert_close(network(data[0]), model(data[0]))
    assert [name for name, p in network.named_parameters() if p.requires_grad] == ["0.weight"]
    truth = references.Truth(network, [data], F.cross_entropy)
    found = sl.measure(network, data, measures="relative.kappa")["relative.kappa"]
    view = references.matrix_view(network[0])
    expected = references.kappa(truth.hessian(["0.weight"]), network[0].weight, view)
    assert found.value == pytest.approx(expected, rel=1e-9)
    assert found.exact
