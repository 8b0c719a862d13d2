"""Many products leave nothing behind: no cycles, no growth, one graph at a time."""

import ctypes
import gc
import weakref
from typing import ClassVar, get_args

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from spiritlevel.engine.weight_space.chunk_products import Operator, ProductMethod
from spiritlevel.engine.weight_space.parameter_space import ParameterSpace
from spiritlevel.engine.weight_space.products import Products, Request
from spiritlevel.model.surface import Surface
from zoo import wirings
from zoo.cases import Case, normal
from zoo.wirings import CLASSES

OPERATORS = get_args(Operator)
PASSES, VECTORS = 4, 25  # 100 products an operator


def smooth_mlp():
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, CLASSES))


def layernorm_gelu():
    return nn.Sequential(nn.Linear(4, 50), nn.LayerNorm(50), nn.GELU(), nn.Linear(50, CLASSES))


def convolutions():
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.BatchNorm2d(12),
        nn.SiLU(),
        nn.Conv2d(12, 4, 2),
        nn.Flatten(),
        nn.Linear(16, CLASSES),
    )


NETWORKS = {
    "mlp": Case(layernorm_gelu, normal(4)),
    "convolutions": Case(convolutions, normal(1, 3, 3)),
    "attention": Case(lambda: wirings.Encoder(batch_first=True, norm_first=True), normal(3, 4)),
}


def random(*shape):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def live_tensors():
    return sum(isinstance(thing, torch.Tensor) for thing in gc.get_objects())


class MallInfo(ctypes.Structure):
    """What glibc's mallinfo2 returns."""

    _fields_: ClassVar = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks")),
        ("keepcost", ctypes.c_size_t),
    ]


def bytes_in_use():
    """Bytes handed out by malloc and not given back: the memory of tensors and of graphs too."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = MallInfo
    found = mallinfo2()
    return found.uordblks + found.hblkhd


has_mallinfo = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="counts bytes with glibc's mallinfo2"
)


def torch_uses_malloc():
    """Builds for ARM use mimalloc, whose memory glibc does not count."""
    if not hasattr(ctypes.CDLL(None), "mallinfo2"):
        return False
    before = bytes_in_use()
    tensor = torch.zeros(10_000, dtype=torch.float64)
    return bytes_in_use() - before >= tensor.nbytes


@has_mallinfo
@pytest.mark.parametrize(
    ("name", "method"),
    [
        *(("mlp", method) for method in get_args(ProductMethod)),
        *((name, "reverse") for name in NETWORKS if name != "mlp"),
        ("attention", "difference"),
    ],
)
@pytest.mark.sampled(2)
def test_no_growth_and_no_cycles_over_100_products(name, method):
    model, batches = NETWORKS[name].make()
    surface = Surface(model, batches[1:2])  # one sample: chunks have their own test below
    space = ParameterSpace(surface)
    products = Products(surface, chunk=3, method=method)
    operators = OPERATORS if name == "mlp" else ("hessian",)
    requests = [Request(op, space, random(VECTORS, space.size)) for op in operators]
    products.multiply([Request(r.operator, space, r.vectors[:2]) for r in requests])
    if method == "forward":  # torch keeps something of the first passes, and of no later one
        for _ in range(50):
            products.multiply(requests)
    gc.collect()
    gc.disable()  # whatever hangs in a cycle stays visible
    try:
        tensors, used = live_tensors(), bytes_in_use()
        for _ in range(PASSES):
            products.multiply(requests)
        assert live_tensors() <= tensors
        if method == "forward":  # there torch makes classes for functions of ours, which are cycles
            gc.collect()
        # one vector left behind by each product, or one graph a pass, would be many times this
        assert bytes_in_use() - used < 8 * 8 * space.size
    finally:
        gc.enable()


@has_mallinfo
@pytest.mark.skipif(
    not torch_uses_malloc(), reason="torch has an allocator of its own on this processor"
)
def test_what_only_a_graph_holds_is_counted():
    """A meta-test: no Python tensor, but bytes that malloc knows of."""
    x = random(1000).requires_grad_()
    live_tensors(), bytes_in_use()  # what the first call of a library leaves behind
    gc.collect()
    tensors, used = live_tensors(), bytes_in_use()
    with torch.random.fork_rng():
        held = [F.dropout(x).sum()]
    assert live_tensors() == tensors + 1
    assert bytes_in_use() - used >= 8 * 1000  # the mask
    held.clear()
    assert bytes_in_use() - used < 8 * 1000


class Token:
    """Lives as long as the node of the graph that holds it."""


class Witness(torch.autograd.Function):
    """The identity, twice differentiable; leaves a token in its node."""

    tokens: ClassVar[list] = []
    alive: ClassVar[list] = []  # tokens of earlier chunks at the start of each

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.token = Token()
        Witness.tokens.append(weakref.ref(ctx.token))

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clone()

    @staticmethod
    def jvp(ctx, tangent):
        return tangent.clone()


class Apply(nn.Module):
    def forward(self, x):
        Witness.alive.append(sum(ref() is not None for ref in Witness.tokens))
        return Witness.apply(x)


@pytest.mark.parametrize("method", get_args(ProductMethod))
@pytest.mark.parametrize("operator", OPERATORS)
def test_graphs_die_before_the_next_one_is_made(operator, method):
    """A chunk's memory holds one graph: that of the run before is gone, without a collector."""
    plain, batches = Case(smooth_mlp, normal(4), "mse").make()
    surface = Surface(nn.Sequential(plain[0], Apply(), *plain[1:]), batches, loss="mse")
    space = ParameterSpace(surface)
    products = Products(surface, chunk=1, method=method)
    _ = products.together  # tried on a few samples, whose graphs are not meant here
    Witness.tokens.clear()
    Witness.alive.clear()
    gc.disable()
    try:
        products.multiply([Request(operator, space, random(2, space.size))])
        # one run a sample, which serves all vectors; or at least one for each vector
        assert len(Witness.alive) == 7 if method == "reverse" else len(Witness.alive) >= 7 * 3
        assert len(Witness.tokens) >= len(Witness.alive)
        assert all(ref() is None for ref in Witness.tokens)
        assert max(Witness.alive) == 0, "the graph of the run before is still there"
    finally:
        gc.enable()


def test_the_witness_can_fail():
    """A meta-test: a graph that is held is seen."""
    Witness.tokens.clear()
    held = Witness.apply(torch.ones(1, requires_grad=True))
    assert Witness.tokens[0]() is not None
    del held
    assert Witness.tokens[0]() is None
