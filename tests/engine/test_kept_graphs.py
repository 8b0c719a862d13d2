"""One graph of the gradient serves many products, where the data is a single chunk."""

import contextlib

import torch
from torch import nn

from spiritlevel.engine.weight_space.parameter_space import ParameterSpace
from spiritlevel.engine.weight_space.products import Products, Request
from spiritlevel.model.surface import Surface
from zoo.cases import normal
from zoo.wirings import CLASSES


def three_products(chunk, *, keep, names=(None, None, ["2.bias"])):
    """Products with three vectors one after another, and the samples that ran forward for each."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, CLASSES)).double()
    x = normal(4)(6, torch.Generator().manual_seed(0))
    surface = Surface(model, (x, torch.arange(6) % CLASSES))
    products = Products(surface, chunk=chunk)
    images, forwards = [], []
    with products.keeping_graph() if keep else contextlib.nullcontext():
        for number, block in enumerate(ParameterSpace(surface, each) for each in names):
            generator = torch.Generator().manual_seed(number)
            vectors = torch.randn(2, block.size, generator=generator, dtype=torch.float64)
            before = surface.cost
            images += products.multiply([Request("hessian", block, vectors)])
            forwards.append((surface.cost - before).forwards)
    assert products._kept is None  # the graph is free again
    return images, forwards


def test_a_graph_that_is_kept_serves_later_products_and_their_blocks():
    kept, forwards = three_products(6, keep=True)
    plain, all_forwards = three_products(6, keep=False)
    assert forwards == [6, 6, 0]  # the first one finds out that the data is a single chunk
    assert all_forwards == [6, 6, 6]
    for a, b in zip(kept, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def test_graphs_of_several_chunks_are_not_kept():
    kept, forwards = three_products(4, keep=True)
    plain, _ = three_products(6, keep=False)
    assert forwards == [6, 6, 6]
    for a, b in zip(kept, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def test_a_graph_does_not_serve_parameters_that_it_lacks():
    names = (["2.bias"], ["2.bias"], ["0.weight"])
    kept, forwards = three_products(6, keep=True, names=names)
    plain, _ = three_products(6, keep=False, names=names)
    assert forwards == [6, 6, 6]
    for a, b in zip(kept, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
