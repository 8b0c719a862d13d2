"""SAM and the penalties make no float64 where the network is, if that place has none."""

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from spiritlevel import training
from spiritlevel.model import host


class NoDoubles(TorchDispatchMode):
    """Raises where a float64 tensor is made, as a device without the type does.

    Numbers drawn by a generator of the CPU are on the CPU wherever the network is.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for each in tree_leaves(out) if func is not torch.ops.aten.randn.generator else ():
            if isinstance(each, torch.Tensor) and each.dtype == torch.float64:
                raise TypeError(f"{func} made a float64 tensor on a device without float64")
        return out


@pytest.fixture
def problem(generator):
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    return net, torch.randn(16, 4, generator=generator), torch.arange(16) % 3


def gradients(net, penalty, x, y):
    net.zero_grad()
    (F.cross_entropy(net(x), y) + penalty(x, y)).backward()
    return torch.cat([p.grad.flatten() for p in net.parameters()])


@pytest.mark.parametrize(
    "make",
    [
        lambda net: training.FlatnessPenalty(
            net, weight=0.1, generator=torch.Generator().manual_seed(0)
        ),
        lambda net: training.HeadPenalty(net, weight=0.1),
        lambda net: training.KappaPenalty(net, weight=0.1, layer="0"),
    ],
    ids=["flatness", "head", "kappa"],
)
def test_a_penalty_makes_none_and_gives_the_same_gradient(problem, make, monkeypatch):
    net, x, y = problem
    expected = gradients(net, make(net), x, y)
    monkeypatch.setattr(host, "NO_FLOAT64", frozenset({"cpu"}))
    penalty = make(net)
    with NoDoubles():
        found = gradients(net, penalty, x, y)
    torch.testing.assert_close(found, expected)


def test_a_device_that_has_it_uses_it(problem):
    """So the test above would notice."""
    net, x, y = problem
    penalty = training.FlatnessPenalty(net, weight=0.1)
    with NoDoubles(), pytest.raises(TypeError, match="made a float64 tensor"):
        gradients(net, penalty, x, y)


@pytest.mark.parametrize(
    "kind", [training.SAM, functools.partial(training.ASAM, adaptive_bias=False)]
)
def test_sam_makes_none(problem, kind):
    net, x, y = problem
    optimizer = kind(torch.optim.SGD(net.parameters(), lr=0.1), rho=0.05)

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        return loss

    before = [p.detach().clone() for p in net.parameters()]
    with NoDoubles():
        optimizer.step(closure)
    assert any((a != b).any() for a, b in zip(before, net.parameters(), strict=True))
