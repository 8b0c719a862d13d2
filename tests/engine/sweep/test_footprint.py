"""The chunk fits the budget and no larger one does."""

import weakref

import pytest
import torch
from torch import nn

import spiritlevel as sl
from spiritlevel.engine.sweep import pulling
from spiritlevel.engine.sweep.footprint import CPU_TENSOR_BYTES, Footprint

SHAPE = {"saved": 1000, "cached": 500, "working": 200, "collecting": (300, 40), "num_columns": 9}


@pytest.mark.parametrize("sweep", [True, False])
@pytest.mark.parametrize("memory", [10_000, 5_000_000, 3_000_000_000])
def test_the_largest_chunk_that_fits_is_taken(memory, sweep):
    footprint = Footprint(**SHAPE, largest=300, on_cpu=False)
    chunk = footprint.chunk(memory, sweep=sweep)
    assert footprint.bytes(chunk, sweep=sweep) <= memory < footprint.bytes(chunk + 1, sweep=sweep)


def test_one_sample_is_taken_where_none_fits():
    footprint = Footprint(**SHAPE, largest=300, on_cpu=True)
    assert footprint.chunk(1, sweep=True) == 1


def test_collected_columns_are_counted_up_to_the_limit():
    footprint = Footprint(**SHAPE, largest=300, on_cpu=False)
    # few samples: all nine columns of both layers are collected
    assert footprint.bytes(10, sweep=True) == 10 * (1700 + 3 * 300 + 9 * 340)
    # a million samples: the larger layer's gradients exceed the limit and none is collected
    assert footprint.bytes(10**6, sweep=True) == 10**6 * (1700 + 3 * 300 + 300 + 40)


def test_tensors_on_a_cpu_stay_below_the_page_by_page_limit():
    footprint = Footprint(**SHAPE, largest=CPU_TENSOR_BYTES // 4, on_cpu=True)
    assert footprint.chunk(10**12, sweep=True) == 4


def test_columns_that_were_pulled_are_let_go(monkeypatch):
    alive, most = weakref.WeakSet(), 0
    scaled_to_one = pulling.scaled_to_one

    def counted(column):
        nonlocal most
        unit, size = scaled_to_one(column)
        alive.add(unit)
        most = max(most, len(alive))
        return unit, size

    monkeypatch.setattr(pulling, "scaled_to_one", counted)
    torch.manual_seed(0)
    model = nn.Linear(3, 200).double().eval()
    x, y = torch.randn(8, 3, dtype=torch.float64), torch.randint(200, (8,))
    trace = sl.measure(model, (x, y), measures="curvature.trace", method="exact")["curvature.trace"]
    p = model(x).softmax(1).detach()
    closed = ((1 - p.square().sum(1)) * (x.square().sum(1) + 1)).mean()
    assert trace.value == pytest.approx(float(closed), rel=1e-12)
    assert most < 10
