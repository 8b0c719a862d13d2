"""Graphs of the gradient serve many products, where those of all data fit in memory."""

import contextlib

import torch
from torch import nn

import spiritlevel as sl
from spiritlevel.engine import memory as memories
from spiritlevel.engine.memory import VectorMemory
from spiritlevel.engine.weight_space.parameter_space import ParameterSpace
from spiritlevel.engine.weight_space.products import Products, Request
from spiritlevel.engine.workspace import Workspace
from spiritlevel.model.surface import Surface
from zoo.cases import normal
from zoo.wirings import CLASSES


def three_products(
    chunk, *, keep, names=(None, None, ["2.bias"]), batch=6, progress=None, **options
):
    """Products with three vectors one after another, and the samples that ran forward for each.

    `progress` is called with the model after each batch.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, CLASSES)).double()
    x = normal(4)(6, torch.Generator().manual_seed(0))
    y = torch.arange(6) % CLASSES
    surface = Surface(model, list(zip(x.split(batch), y.split(batch), strict=True)))
    if progress is not None:
        surface.progress = lambda done, total, what: progress(model, done)
    products = Products(surface, chunk=chunk, **options)
    _ = products.together  # tried on a few samples before several vectors are multiplied
    images, forwards = [], []
    with products.keeping_graph() if keep else contextlib.nullcontext():
        for number, block in enumerate(ParameterSpace(surface, each) for each in names):
            generator = torch.Generator().manual_seed(number)
            vectors = torch.randn(2, block.size, generator=generator, dtype=torch.float64)
            before = surface.cost
            images += products.multiply([Request("hessian", block, vectors)])
            forwards.append((surface.cost - before).forwards)
    assert not products._graphs  # they are free again
    return images, forwards


def assert_same(kept, plain):
    for a, b in zip(kept, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def test_a_graph_that_is_kept_serves_later_products_and_their_blocks():
    kept, forwards = three_products(6, keep=True)
    plain, all_forwards = three_products(6, keep=False)
    assert forwards == [6, 0, 0]
    assert all_forwards == [6, 6, 6]
    assert_same(kept, plain)


def test_graphs_of_several_batches_are_kept():
    kept, forwards = three_products(6, keep=True, batch=4)
    plain, _ = three_products(6, keep=False)
    assert forwards == [6, 0, 0]
    assert_same(kept, plain)


def test_graphs_are_kept_of_more_samples_than_a_chunk_has_where_there_is_room():
    kept, forwards = three_products(4, keep=True, kept=6)
    plain, _ = three_products(6, keep=False)
    assert forwards == [6, 0, 0]
    assert_same(kept, plain)


def test_graphs_of_more_samples_than_there_is_room_for_are_not_kept():
    kept, forwards = three_products(4, keep=True)
    plain, _ = three_products(6, keep=False)
    assert forwards == [6, 6, 6]
    assert_same(kept, plain)


def test_progress_is_reported_while_graphs_are_kept():
    seen = []
    three_products(6, keep=True, batch=4, progress=lambda model, done: seen.append(done))
    assert seen == [4, 6, 4, 6, 4, 6]


def hold_in_float32_for_a_while(model, done):
    """What a measurement of a model in another type does to its weights; no digit is lost here."""
    for weights in model.parameters():
        values = weights.data
        weights.data = values.float()
        weights.data = values


def test_graphs_that_a_callback_cuts_off_from_the_weights_are_built_again():
    kept, forwards = three_products(
        6, keep=True, batch=4, progress=hold_in_float32_for_a_while, names=(None, None, None)
    )
    plain, _ = three_products(6, keep=False, names=(None, None, None))
    assert forwards == [6, 6, 6]
    assert_same(kept, plain)


def test_graphs_of_many_batches_are_not_kept_if_their_gradients_are_large(monkeypatch):
    weights = 8 * (4 * 5 + 5 + 5 * CLASSES + CLASSES)
    monkeypatch.setattr(memories, "KEPT_GRADIENTS", 3 * weights)
    assert three_products(6, keep=True, batch=2)[1] == [6, 0, 0]
    monkeypatch.setattr(memories, "KEPT_GRADIENTS", 3 * weights - 1)
    assert three_products(6, keep=True, batch=2)[1] == [6, 6, 6]


def test_a_limit_of_memory_leaves_none_for_gradients_of_several_batches():
    limited = VectorMemory(1 << 30)
    assert three_products(6, keep=True, batch=3, memory=limited)[1] == [6, 6, 6]
    assert three_products(6, keep=True, memory=limited)[1] == [6, 0, 0]


def test_a_workspace_keeps_graphs_within_its_memory():
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, CLASSES)).double()
    x = normal(4)(6, torch.Generator().manual_seed(0))
    surface = Surface(model, (x, torch.arange(6) % CLASSES))
    free, limited = Workspace(surface), Workspace(surface, memory=1 << 20)
    assert free.products.kept == memories.CPU_GRAPHS // free.plan.footprint.graph
    assert limited.products.kept == limited.products.chunk < free.products.kept


def test_a_graph_does_not_serve_parameters_that_it_lacks():
    names = (["2.bias"], ["2.bias"], ["0.weight"])
    kept, forwards = three_products(6, keep=True, names=names)
    plain, _ = three_products(6, keep=False, names=names)
    assert forwards == [6, 0, 6]
    assert_same(kept, plain)


def test_the_forecast_counts_graphs_that_are_kept(monkeypatch):
    model = nn.Sequential(nn.Linear(4, 500), nn.Tanh(), nn.Linear(500, CLASSES)).double()
    x = normal(4)(60, torch.Generator().manual_seed(0))
    y = torch.arange(60) % CLASSES
    parts = list(zip(x.split(20), y.split(20), strict=True))
    graph = Workspace(Surface(model, parts)).plan.footprint.graph

    def memory(data, **options):
        return sl.preflight(model, data, measures="curvature.lambda_max", **options).memory

    assert memory(parts) == memory((x, y)) == 60 * graph
    assert memory((x, y), memory=1 << 26) == 60 * graph  # it is a chunk
    assert memory(parts, memory=1 << 26) < 60 * graph  # no room for three gradients
    assert memory((x, y), memory=1 << 19) < 60 * graph  # more than a chunk
    monkeypatch.setattr(memories, "KEPT_GRADIENTS", 0)
    assert memory(parts) < 60 * graph == memory((x, y))
