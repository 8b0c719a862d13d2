"""Block Lanczos against dense eigenvalues, with residuals and products counted independently."""

import dataclasses
import itertools
import math

import pytest
import torch

from engine.weight_space.lanczos_problems import (
    MATRICES,
    RTOL,
    SETTINGS,
    Counted,
    N,
    assert_true,
    planted,
    rotated,
    run,
    symmetric,
    truth,
)
from spiritlevel.engine.weight_space.lanczos import LEAST_BLOCKS, Lanczos, eigenpairs
from spiritlevel.engine.weight_space.lockstep import solve
from zoo.plain import random


@pytest.mark.parametrize("name", MATRICES)  # on top, so that a day has all kinds of settings
@pytest.mark.parametrize("max_basis", [24, 100], ids=["restarted", "whole"])
@pytest.mark.parametrize("num", [1, 3])
@pytest.mark.parametrize("which", ["largest", "smallest", "both"])
def test_pairs_are_those_of_the_dense_matrix(name, which, num, max_basis):
    A = MATRICES[name]
    found = run(A, num=num, which=which, max_basis=max_basis)
    assert found.converged.all()
    assert_true(A, found, num, which)


def test_the_smallest_possible_basis_is_enough():
    A = MATRICES["random"]
    found = run(A, max_basis=3)
    assert found.converged.all()
    assert found.products > 20  # many restarts
    assert_true(A, found, 1, "largest")
    found = run(A, num=2, which="both", max_basis=8)
    assert_true(A, found, 2, "both")


def test_a_restart_costs_products_but_no_accuracy():
    A = rotated(torch.linspace(0, 1, N))
    whole, restarted = run(A), run(A, max_basis=8)
    assert whole.products < restarted.products < 10 * whole.products
    assert_true(A, restarted, 1, "largest")


@pytest.mark.parametrize("which", ["largest", "smallest", "both"])
def test_ill_conditioned(which):
    A = rotated(torch.logspace(0, -12, N, dtype=torch.float64))
    found = run(A, num=2, which=which)
    assert found.converged.all()
    assert_true(A, found, 2, which)


@pytest.mark.parametrize("name", ["random", "low rank", "double", "negative", "zero", "1x1"])
@pytest.mark.parametrize("max_basis", [16, 100])
@pytest.mark.parametrize("which", ["largest", "smallest", "both"])
def test_float32_operators_are_solved_to_their_round_off(name, which, max_basis):
    A = MATRICES[name].float()
    found = run(A, num=2, which=which, max_basis=max_basis, residual_rtol=1e-5)
    assert found.converged.all()
    assert_true(A, found, 2, which)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="TF32 is a mode of NVIDIA GPUs")
@pytest.mark.parametrize("which", ["largest", "both"])
def test_the_tf32_mode_of_a_gpu_does_not_reach_the_basis(which):
    A, exact = MATRICES["random"].float(), MATRICES["random"].cuda()
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True  # monkeypatch cannot take this one back
    try:
        start = random(2, N).float().cuda()
        settings = SETTINGS | {"max_basis": 16, "residual_rtol": 1e-5}
        iteration = Lanczos(start, num=2, which=which, **settings)
        [found] = solve([iteration], lambda rows: {0: (rows[0].double() @ exact).float()})
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert found.converged.all()
    assert found.vectors.is_cuda
    assert_true(A, dataclasses.replace(found, vectors=found.vectors.cpu()), 2, which)


def test_a_wider_block_than_wanted_is_allowed():
    A = MATRICES["triple"]
    assert_true(A, run(A, num=2, block=4), 2, "largest")
    # here the pending rows move by less than their number at the first restart
    assert_true(A, run(A, num=3, block=4, max_basis=11), 3, "largest")


@pytest.mark.parametrize("name", ["random", "positive", "clustered"])
@pytest.mark.parametrize("residual_rtol", [1e-2, 1e-4, 1e-6])
def test_converged_means_a_true_residual_below_rtol(name, residual_rtol):
    A = MATRICES[name]
    found = run(A, num=2, residual_rtol=residual_rtol)
    V = found.vectors
    residuals = (V @ A - found.values[:, None] * V).norm(dim=1)
    assert found.converged.all()
    assert (residuals <= residual_rtol * found.values.abs() * (1 + 1e-6)).all()
    assert found.products < run(A, num=2, residual_rtol=1e-12).products


def test_an_eigenvalue_of_zero_need_not_be_known_to_round_off():
    A = rotated(torch.linspace(0, 1, N))
    found = run(A, which="smallest", residual_rtol=1e-2, max_basis=20)
    assert found.converged.all()
    assert 1e-14 < found.residuals < 1e-2 * math.sqrt(2.3e-16)


def test_too_few_products_give_the_best_so_far_and_say_so():
    A = rotated(torch.linspace(0, 1, N))
    found = run(A, num=2, max_products=11)
    assert found.products == 10  # whole blocks only
    assert not found.converged.any()
    largest = truth(A, 2, "largest")
    assert (found.values < largest).all()  # a Ritz value lies inside the spectrum
    assert (found.values > 0.8).all()
    V = found.vectors
    residuals = (V @ A - found.values[:, None] * V).norm(dim=1)
    torch.testing.assert_close(found.residuals, residuals, rtol=1e-9, atol=0)
    assert (residuals > RTOL * found.values).all()


def test_some_may_have_converged_before_the_products_run_out():
    found = run(planted(50.0), num=2, max_products=20)
    assert found.converged.tolist() == [True, False]


def test_an_early_result_is_consistent():
    A = symmetric(N)
    iteration = Lanczos(random(1, N), **SETTINGS | {"max_basis": 5})
    for _ in range(7):  # some of them right after a restart
        iteration.update(iteration.directions() @ A)
        found = iteration.result()
        V = found.vectors
        torch.testing.assert_close((V @ A @ V.T)[0], found.values)
        residual = (V @ A - found.values * V).norm(dim=1)
        torch.testing.assert_close(residual, found.residuals)


def test_directions_are_orthonormal_to_everything_before():
    A, seen = MATRICES["random"], []
    iteration = Lanczos(random(3, N), num=3, **SETTINGS)
    while not iteration.done:
        seen.append(iteration.directions().clone())
        iteration.update(seen[-1] @ A)
    Q = torch.cat(seen)
    assert len(Q) > N / 2
    torch.testing.assert_close(Q @ Q.T, torch.eye(len(Q)).double(), rtol=0, atol=1e-14)
    assert iteration.directions().shape == (0, N)


def test_the_last_block_shrinks_to_what_is_left_of_the_space():
    A = symmetric(7)
    iteration = Lanczos(random(3, 7), num=3, **SETTINGS | {"residual_rtol": 0.0})
    widths = []
    while not iteration.done:
        widths.append(len(iteration.directions()))
        iteration.update(iteration.directions() @ A)
    assert widths == [3, 3, 1]
    found = iteration.result()
    assert_true(A, found, 3, "largest")
    # nothing is left over, but round-off is admitted
    V = found.vectors
    assert ((V @ A - found.values[:, None] * V).norm(dim=1) <= found.residuals).all()


def test_a_warm_start_needs_fewer_products():
    A = rotated(torch.linspace(0, 1, N).square())
    cold = run(A, num=3)
    again = run(A, num=3, start=cold.vectors)
    # one block shows that they are eigenvectors, and a few more that no other one is steeper
    assert again.products == 3 * (1 + LEAST_BLOCKS) < cold.products
    assert run(A, num=3, start=1e-30 * cold.vectors).products == again.products
    B = A + 1e-6 * symmetric(N)
    warm = run(B, num=3, start=cold.vectors)
    assert warm.products < run(B, num=3).products
    assert_true(B, warm, 3, "largest")


@pytest.mark.parametrize("kind", ["zero", "equal", "dependent", "almost", "wide", "gradient"])
def test_unusable_rows_of_a_start_are_replaced(kind):
    start = random(3, N)
    A = MATRICES["triple"]
    if kind == "zero":
        start[1] = 0
    elif kind == "equal":
        start[:] = start[0].clone()
    elif kind == "dependent":
        start[2] = 3 * start[0] - 1e5 * start[1]
    elif kind == "almost":
        start[2] = start[0] + 1e-12 * start[2]
    elif kind == "wide":
        start, A = random(9, 4), rotated([2.0, 2.0, 2.0, -1.0])
    else:
        start.requires_grad_()
    iteration = Lanczos(start, num=3, **SETTINGS)
    Q = iteration.directions()
    torch.testing.assert_close(Q @ Q.T, torch.eye(len(Q)).double(), rtol=0, atol=1e-14)
    assert not Q.requires_grad
    assert_true(A, run(A, num=3, start=start), 3, "largest")


def test_an_invariant_subspace_is_left_by_random_directions():
    # e_30 is an eigenvector: its Krylov space has one dimension, and both ends lie outside it.
    A = torch.diag(torch.linspace(-1, 2, N).double())
    start = torch.eye(N).double()[30:31]
    assert_true(A, run(A, start=start, which="both"), 1, "both")


def test_randomness_comes_from_the_generator_alone():
    def replaced(**settings):
        return Lanczos(torch.zeros(1, N), **SETTINGS, **settings).directions()

    before = torch.random.get_rng_state()
    assert torch.equal(replaced(), replaced())
    seeded = replaced(generator=torch.Generator().manual_seed(5))
    assert torch.equal(seeded, replaced(generator=torch.Generator().manual_seed(5)))
    assert not torch.equal(seeded, replaced())
    assert torch.equal(before, torch.random.get_rng_state())


def test_lockstep_equals_one_at_a_time():
    matrices = [MATRICES[name] for name in ("random", "double", "1x1", "zero")]
    whiches = ["largest", "both", "smallest", "largest"]

    def iterations():
        return [
            Lanczos(random(2, len(A)), num=2, which=which, **SETTINGS | {"max_basis": 16})
            for A, which in zip(matrices, whiches, strict=True)
        ]

    keys = []

    def multiply(directions):
        keys.append(set(directions))
        return {i: rows @ matrices[i] for i, rows in directions.items()}

    together = solve(iterations(), multiply)
    for i, iteration in enumerate(iterations()):
        [alone] = solve([iteration], lambda rows, A=matrices[i]: {0: rows[0] @ A})
        for field in ("values", "vectors", "residuals", "converged"):
            assert torch.equal(getattr(together[i], field), getattr(alone, field))
        assert together[i].products == alone.products
    assert keys[0] == {0, 1, 2, 3}
    assert len(keys) == max(found.products for found in together) / 2
    assert all(late <= early for early, late in itertools.pairwise(keys))
    assert len(keys[-1]) == 1


def test_nothing_to_solve_is_nothing_found():
    assert solve([], Counted(torch.eye(2))) == []


def test_eigenpairs_multiplies_one_vector_at_a_time():
    A, shapes = MATRICES["double"], []

    def product(v):
        shapes.append(v.shape)
        return A @ v

    found = eigenpairs(product, random(2, N), num=2, which="smallest")
    assert shapes == [(N,)] * found.products
    assert_true(A, found, 2, "smallest")


def test_products_may_carry_a_graph():
    scale = torch.ones((), dtype=torch.float64, requires_grad=True)
    A = MATRICES["random"]
    found = eigenpairs(lambda v: scale * (A @ v), random(1, N))
    assert not found.vectors.requires_grad
    assert_true(A, found, 1, "largest")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("block", "max_basis"), [(1, 100), (1, 20), (3, 30)])
def test_the_basis_stays_orthogonal_in_long_runs(dtype, block, max_basis):
    """One full round of products with the basis is enough, except after a restart."""
    diagonal = torch.linspace(0, 1, 300).square().to(dtype)
    diagonal[:2] = torch.tensor([3.0, -1e3])
    settings = {"num": block, "rtol": 0.0, "max_products": 90, "max_basis": max_basis}
    iteration = Lanczos(random(block, 300).to(dtype), **settings)
    while not iteration.done:
        iteration.update(iteration.directions() * diagonal)
    basis = iteration.subspace().basis.double()
    gram = basis @ basis.T
    # two full rounds leave up to 20 units in the last place
    slack = 50 * torch.finfo(dtype).eps
    torch.testing.assert_close(gram, torch.eye(len(gram)).double(), rtol=0, atol=slack)
