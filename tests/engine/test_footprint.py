"""The chunk fits the budget and no larger one does."""

import pytest

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
