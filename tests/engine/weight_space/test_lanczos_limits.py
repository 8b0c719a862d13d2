"""Lanczos keeps its promise of memory, and refuses bad products and arguments."""

import pytest
import torch

from engine.weight_space.lanczos_problems import MATRICES, SETTINGS, Counted, N, assert_true, run
from engine.weight_space.live_vectors import LiveVectors
from spiritlevel import SpiritlevelError
from spiritlevel.engine.weight_space import long_rows
from spiritlevel.engine.weight_space.lanczos import Lanczos
from spiritlevel.engine.weight_space.lockstep import solve
from zoo.plain import random


@pytest.mark.parametrize("which", ["largest", "both"])
def test_results_do_not_depend_on_the_chunks(which, monkeypatch):
    A = MATRICES["random"]
    whole = run(A, num=2, which=which, max_basis=16)
    monkeypatch.setattr(long_rows, "CHUNK", 100)  # a few columns at a time
    chunked = run(A, num=2, which=which, max_basis=16)
    torch.testing.assert_close(chunked.values, whole.values, rtol=1e-13, atol=1e-13)
    assert_true(A, chunked, 2, which)


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.nightly)]
)
def test_no_more_vectors_are_alive_than_promised(dtype, monkeypatch):
    monkeypatch.setattr(long_rows, "CHUNK", 1 << 12)
    size, block, max_basis = 20_000, 2, 12
    diagonal = torch.linspace(0, 1, size).square().to(dtype)
    settings = {"num": 2, "residual_rtol": 1e-4, "max_products": 30, "max_basis": max_basis}
    with LiveVectors(size * dtype.itemsize, least=4096) as memory:
        run = Lanczos(random(block, size).to(dtype), **settings)
        [found] = solve([run], lambda rows: {0: diagonal * rows[0]})
    assert found.products == 30  # several restarts
    # the basis, the products, the returned vectors in their place, and little for the chunks
    assert max_basis + 2 * block <= memory.most < max_basis + 2 * block + 1


def test_the_memory_test_can_fail():
    with LiveVectors(80) as memory:
        kept = [torch.zeros(10, dtype=torch.float64) for _ in range(5)]
    assert len(kept) == memory.most == 5


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_products_are_refused(value):
    iteration = Lanczos(random(2, N), num=2, **SETTINGS)
    iteration.update(iteration.directions() @ MATRICES["random"])
    products = iteration.directions() @ MATRICES["random"]
    products[1, 7] = value
    with pytest.raises(
        SpiritlevelError,
        match=r"'products' .* must be finite\. Got NaN or infinity after 2 finite products\. "
        r"Check that loss and gradient are finite .* float64\.",
    ):
        iteration.update(products)


BAD = [
    ({"start": torch.ones(5)}, r"'start' .* shape \(block, size\)\. Got torch.float32 .* \(5,\)"),
    ({"start": torch.ones(0, 5)}, r"Got torch.float32 of shape \(0, 5\)\. Typical: torch.randn"),
    ({"start": torch.ones(1, 5).half()}, r"must be a float32 or float64 .* Got torch.float16"),
    ({"start": torch.full((1, 5), torch.nan)}, r"'start' .* must be finite\. Got NaN or infinity"),
    ({"num": 3}, r"'start' .* at least num=3 rows, .* Got 2\. Add random rows\."),
    ({"num": 0}, r"'num' .* must be at least 1\. Got 0\. Typical: 1 to 10\."),
    ({"which": "biggest"}, r"'which' .* one of \('largest', 'smallest', 'both'\)\. Got 'biggest'"),
    (
        {"residual_rtol": -1e-3},
        r"'residual_rtol' .* must be in \[0, 1\)\. Got -0\.001\. Typical: 1e-3",
    ),
    ({"residual_rtol": float("nan")}, r"'residual_rtol' .* must be in \[0, 1\)\. Got nan"),
    ({"max_products": 1}, r"'max_products' .* at least 2, the block\. Got 1\. Raise it, or start"),
    ({"max_basis": 4}, r"'max_basis' .* at least 5 here: the 1 wanted .* of 2\. Got 4\. Raise it"),
    ({"max_basis": 5, "which": "both"}, r"must be at least 6 here: the 2 wanted .* Got 5\."),
]


@pytest.mark.parametrize(("change", "text"), BAD, ids=[text[:40] for _, text in BAD])
def test_bad_arguments_are_refused(change, text):
    with pytest.raises(SpiritlevelError, match=text):
        Lanczos(**{"start": random(2, 9)} | SETTINGS | change)


def test_calls_out_of_turn_are_refused():
    iteration = Lanczos(random(2, N), **SETTINGS)
    with pytest.raises(SpiritlevelError, match=r"after the first update\. Got 0 products\. Call"):
        iteration.result()
    with pytest.raises(SpiritlevelError, match=r"shape \(2, 60\), .* Got \(1, 60\)\. Call dir"):
        iteration.update(random(1, N))
    solve([iteration], Counted(torch.eye(N, dtype=torch.float64)))
    with pytest.raises(SpiritlevelError, match=r"Got \(0, 60\) although the iteration is done"):
        iteration.update(random(0, N))
