"""Loss and accuracy of a network, against torch's own."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from spiritlevel.measures.setup import Setup
from spiritlevel.verbs.measuring import performance


@pytest.fixture
def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).double().eval()


def test_over_batches_of_different_sizes(network):
    x, y = torch.randn(23, 4).double(), torch.randint(3, (23,))
    batches = list(zip(x.split(10), y.split(10), strict=True))
    found = performance(Setup(layers="0", seed=1), network, batches)
    outputs = network(x)
    assert found.loss == pytest.approx(float(F.cross_entropy(outputs, y)), rel=1e-12)
    assert found.accuracy == pytest.approx(float((outputs.argmax(1) == y).double().mean()))


def test_ignored_targets_do_not_count(network):
    x, y = torch.randn(10, 4).double(), torch.arange(10) % 3
    y[4:] = -100
    found = performance(Setup(), network, (x, y))
    assert found.loss == pytest.approx(float(F.cross_entropy(network(x), y)), rel=1e-12)
    assert found.accuracy == float((network(x).argmax(1) == y)[:4].double().mean())


def test_a_regression_has_no_accuracy(network):
    x, y = torch.randn(10, 4).double(), torch.randn(10, 3).double()
    found = performance(Setup("mse"), network, (x, y))
    assert found.loss == pytest.approx(float(F.mse_loss(network(x), y)), rel=1e-12)
    assert found.accuracy is None
