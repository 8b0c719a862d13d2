"""Many products leave nothing behind: no cycles, no growth, one graph at a time."""

import gc
import weakref
from typing import ClassVar, get_args

import pytest
import torch
from torch import nn

from networks import Case, normal
from spiritlevel.estimators.products import Operator, Products, Request, Space, Way
from spiritlevel.surface import Surface
from wirings import CLASSES

OPERATORS = get_args(Operator)


def smooth_mlp():
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, CLASSES))


def layernorm_gelu():
    return nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, CLASSES))


def random(*shape):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def live_tensors():
    return sum(isinstance(thing, torch.Tensor) for thing in gc.get_objects())


@pytest.mark.parametrize("way", get_args(Way))
def test_no_growth_and_no_cycles_over_200_products(way):
    model, batches = Case(layernorm_gelu, normal(4)).make()
    surface = Surface(model, batches)
    space = Space(surface)
    products = Products(surface, chunk=3, way=way)
    requests = [Request(op, space, random(10, space.size)) for op in OPERATORS]
    products.multiply(requests)
    gc.collect()
    gc.disable()  # whatever hangs in a cycle stays visible
    try:
        before = live_tensors()
        for _ in range(7):  # 7 passes of 10 vectors by 3 operators
            products.multiply(requests)
        assert live_tensors() <= before
    finally:
        gc.enable()


class Token:
    """Lives as long as the node of the graph that holds it."""


class Witness(torch.autograd.Function):
    """The identity, twice differentiable; leaves a token in its node."""

    tokens: ClassVar[list] = []
    alive: ClassVar[list] = []  # tokens of earlier chunks at the start of each

    @staticmethod
    def forward(ctx, x):
        Witness.alive.append(sum(ref() is not None for ref in Witness.tokens))
        ctx.token = Token()
        Witness.tokens.append(weakref.ref(ctx.token))
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clone()


class Apply(nn.Module):
    def forward(self, x):
        return Witness.apply(x)


def test_graphs_die_with_their_chunk():
    """A chunk's memory holds one graph: that of the chunk before is gone, without a collector."""
    plain, batches = Case(smooth_mlp, normal(4), "mse").make()
    surface = Surface(nn.Sequential(plain[0], Apply(), *plain[1:]), batches, loss="mse")
    space = Space(surface)
    products = Products(surface, chunk=1, way="reverse")
    Witness.tokens.clear()
    Witness.alive.clear()
    gc.disable()
    try:
        products.multiply([Request("hessian", space, random(2, space.size))])
        assert len(Witness.alive) == 7  # one graph a sample
        assert all(ref() is None for ref in Witness.tokens)
        assert max(Witness.alive) == 0, "the graph of the chunk before is still there"
    finally:
        gc.enable()


def test_the_witness_can_fail():
    """A meta-test: a graph that is held is seen."""
    Witness.tokens.clear()
    held = Witness.apply(torch.ones(1, requires_grad=True))
    assert Witness.tokens[0]() is not None
    del held
    assert Witness.tokens[0]() is None
