"""The stated error of an extreme eigenvalue covers the truth, over random starts."""

import math

import pytest
import torch

from engine.weight_space.lanczos_problems import rotated
from spiritlevel.engine.weight_space.lanczos import Lanczos
from spiritlevel.engine.weight_space.lockstep import solve
from spiritlevel.engine.weight_space.ritz_errors import ExtremeBound, gaps, least_part
from zoo.plain import random

N = 200
LINE = torch.linspace(0, 1, N).double()


def wishart():
    A = random(N, 2 * N, seed=5)
    return torch.linalg.eigvalsh(A @ A.T / (2 * N))


SPECTRA = {
    "gapped": torch.cat([LINE[1:], torch.tensor([1.5])]).double(),
    "clustered edge": 1 - LINE.square(),
    "Marchenko-Pastur": wishart(),
    "one outlier": torch.cat([1e-2 * random(N - 1, seed=2), torch.tensor([5.0])]).double(),
    "a pair": torch.cat([LINE[2:], torch.tensor([1.3, 1.31])]).double(),
    "slow decay": 1 / (1 + 20 * LINE),
}

BY_DAY = ("one outlier", "Marchenko-Pastur")


def run(diagonal, seed, *, block=1, dtype=torch.float64, **settings):
    """Lanczos on a diagonal matrix, to which normal starts are as to any other."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(block, len(diagonal), generator=generator, dtype=torch.float64).to(dtype)
    settings = {"max_products": 400, "max_basis": 60, "rtol": 0.01} | settings
    return solve([Lanczos(start, **settings)], lambda rows: {0: rows[0] * diagonal.to(dtype)})[0]


def misses(diagonal, starts, sign=1, **settings):
    """In how many runs the extreme eigenvalue lies beyond its error; all must converge."""
    edge, count = float((sign * diagonal).max()), 0
    for seed in range(starts):
        found = run(diagonal, seed, **settings)
        value, error = sign * float(found.values[0]), float(found.errors[0])
        assert found.converged.all()
        assert value <= edge + 1e-6 * abs(edge)  # a Ritz value is never outside of the spectrum
        assert error <= settings.get("rtol", 0.01) * abs(value)
        count += edge > value + error
    return count


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in BY_DAY else pytest.mark.nightly) for name in SPECTRA],
)
def test_in_95_of_100_starts_the_error_covers_the_truth(name):
    assert misses(SPECTRA[name], 100, rtol=0.2) <= 5


@pytest.mark.nightly
@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize(
    "how",
    [
        {"rtol": 0.01},
        {"max_basis": 12},
        {"block": 3, "num": 3},
        {"dtype": torch.float32},
        {"which": "smallest", "sign": -1},
        {"rtol": 0.1, "confidence": 0.5},
    ],
    ids=str,
)
def test_in_enough_of_1000_starts_the_error_covers_the_truth(name, how):
    diagonal = SPECTRA[name]
    if how.get("sign") == -1:
        diagonal = -diagonal
    # 7 % would be a chance of 1 in 300 at a true rate of 5 %
    assert misses(diagonal, 1000, **how) <= 1000 * (0.07 if "confidence" not in how else 0.55)


@pytest.mark.parametrize("how", [{"max_basis": 10}, {"block": 2, "num": 2, "max_basis": 14}])
def test_restarts_change_neither_errors_nor_what_they_cover(how):
    diagonal = SPECTRA["Marchenko-Pastur"]
    assert misses(diagonal, 2, **how) == 0
    whole = [run(diagonal, seed, **how | {"max_basis": 60}) for seed in range(2)]
    short = [run(diagonal, seed, **how) for seed in range(2)]
    extra = sum(b.products - a.products for a, b in zip(whole, short, strict=True))
    assert 0 <= extra <= 0.5 * sum(a.products for a in whole)


def test_a_small_residual_of_another_eigenvector_does_not_narrow_the_error():
    """The start has little of the largest one: at first the second looks like the largest."""
    diagonal = torch.cat([LINE[2:], torch.tensor([2.0, 2.5])]).double()
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(1, N, generator=generator, dtype=torch.float64)
    start[0, -1] = 0.07 * float(start.norm()) / math.sqrt(N)  # 94 of 100 starts have more
    near = []
    for products in range(2, 10):
        run = Lanczos(start, max_products=products, max_basis=60, rtol=0.0)
        found = solve([run], lambda rows: {0: rows[0] * diagonal})[0]
        assert float(found.values + found.errors) >= 2.5
        near.append(float(2.5 - found.values) > 2 * float(found.residuals))
    assert any(near)  # where the residual alone would have missed it


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("size", [5, 12])
def test_the_bound_is_where_no_eigenvector_could_have_hidden(size, sign):
    """Of all matrices with this basis, T and C, one has an eigenvalue as far out, and no other."""
    A = rotated(sign * torch.linspace(0, 1, 40).square(), seed=3)
    start = random(1, 40, seed=4)
    run = Lanczos(start, rtol=0.0, max_products=size, max_basis=20)
    while not run.done:
        run.update(run.directions() @ A)
    known = run.subspace()
    values, S = torch.linalg.eigh(known.T)
    bound = ExtremeBound(1, 40, 0.95)
    found = bound.beyond(values, S, known.coupling, sign, 1e-14)
    # extend T by one row such that the extreme eigenvalue is just there
    edge = float(values[-1] if sign > 0 else values[0]) + sign * found
    beta = float(known.coupling[0, -1])
    last = torch.linalg.solve(edge * torch.eye(size).double() - known.T, known.coupling[0])
    wider = torch.zeros(size + 1, size + 1).double()
    wider[:size, :size], wider[size, size - 1], wider[size - 1, size] = known.T, beta, beta
    wider[size, size] = edge - beta * last[-1]
    extended, vectors = torch.linalg.eigh(wider)
    i = -1 if sign > 0 else 0
    assert float(extended[i]) == pytest.approx(edge, rel=1e-9)
    # the part of the start in x relative to that of the new row, which is at most 1
    part = abs(float(vectors[0, i] / vectors[-1, i]))
    # the grid's spacing is what it may be off, outwards
    assert part <= least_part(1, 40, 0.05) <= 1.05 * part


def test_an_invariant_subspace_leaves_no_error_but_round_off():
    found = run(torch.tensor([1.0, 2.0, 2.0, 3.0]).double(), 0, block=1)
    assert float(found.values) == pytest.approx(3.0)
    assert float(found.errors) < 1e-13


def test_gaps_are_to_the_nearest_other_value():
    assert gaps(torch.tensor([1.0, 2.0, 5.0])).tolist() == [1.0, 1.0, 3.0]
    assert gaps(torch.tensor([4.0])).tolist() == [0.0]


@pytest.mark.parametrize(("block", "size"), [(1, 30), (2, 50), (4, 200)])
def test_a_random_subspace_has_more_than_the_least_part(block, size):
    x = random(4000, size, seed=1)
    parts = (x[:, :block] / x.norm(dim=1, keepdim=True)).norm(dim=1)
    least = least_part(block, size, 0.05)
    short = float((parts < least).double().mean())
    # ± 4 standard errors; in more dimensions it is cautious
    assert (0.035 if block == 1 else 0.01) < short < 0.064


def test_warm_starts_rest_on_the_residual_alone():
    diagonal = SPECTRA["gapped"]
    cold = run(diagonal, 0, rtol=0.0, max_products=8)
    warm = run(diagonal, 0, rtol=0.0, max_products=8, confidence=None)
    residual, gap = float(warm.residuals), 0.5  # that of the Ritz values is a little more
    assert 0.8 * residual**2 / gap < float(warm.errors) < residual**2 / gap
    assert float(cold.errors) > 3 * float(warm.errors)
