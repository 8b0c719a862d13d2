"""Tr(H²) with directions taken out: the identity on dense matrices, coverage, shared products."""

import re
import statistics

import pytest
import torch
from torch import nn

import spiritlevel as sl
from spiritlevel.engine.weight_space.lanczos import Lanczos
from spiritlevel.engine.weight_space.lockstep import solve
from spiritlevel.engine.weight_space.long_rows import orthonormal, outside
from spiritlevel.measures.curvature import square_probes as module
from spiritlevel.measures.curvature.square_probes import LanczosDeflation, sketched, trace_squared
from zoo.dense_problem import DenseProblem
from zoo.plain import after_training, classes, network, random

SQUARE, LARGEST, SMALLEST = (
    f"curvature.{n}" for n in ("trace_squared", "lambda_max", "lambda_min")
)
SIZE = 14


def symmetric(size=SIZE, rank=None):
    half = random(size, rank or size)
    signs = torch.ones(half.shape[1], dtype=torch.float64)
    signs[::3] = -1.0
    return half * signs @ half.T


def of_lanczos(H, products, max_basis):
    run = Lanczos(
        random(1, len(H), seed=3), residual_rtol=0.0, max_products=products, max_basis=max_basis
    )
    solve([run], lambda asked: {i: rows @ H for i, rows in asked.items()})
    return LanczosDeflation(run.subspace())


def of_sketch(H):
    return sketched(random(5, len(H), seed=4) @ H, lambda rows: rows @ H)


MADE = {
    "sketch": of_sketch,
    "Lanczos": lambda H: of_lanczos(H, 5, 9),
    "Lanczos, restarted": lambda H: of_lanczos(H, 11, 6),
    "Lanczos, all of H": lambda H: of_lanczos(H, SIZE, SIZE),
}


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_what_is_known_and_what_is_left_are_the_whole(made):
    H, z = symmetric(), random(3, SIZE, seed=5)
    known = made(H)
    Q = known.basis
    torch.testing.assert_close(Q @ Q.T, torch.eye(len(Q), dtype=torch.float64))
    P = torch.eye(SIZE, dtype=torch.float64) - Q.T @ Q
    rest = P @ H @ P
    assert known.value + float(rest.square().sum()) == pytest.approx(float(H.square().sum()))
    expected = (z @ rest).square().sum(dim=1)
    torch.testing.assert_close(known.squares(known.probes(z) @ H), expected)
    if isinstance(known, LanczosDeflation):
        torch.testing.assert_close(known.squares_of_plain(z, z @ H), expected)


def test_orthonormal_rows_of_float32_and_of_dependent_ones():
    plain = random(6, 50)
    plain[2], plain[4] = plain[0] - 2 * plain[1], plain[3] + plain[5]
    for dtype, tolerance in ((torch.float64, 1e-13), (torch.float32, 1e-6)):
        basis = orthonormal(plain.to(dtype).clone())
        assert len(basis) == 4
        gram = basis.double() @ basis.double().T
        torch.testing.assert_close(gram, torch.eye(4).double(), rtol=0, atol=tolerance)
        assert float(outside(plain.to(dtype), basis).abs().max()) < 1e3 * tolerance


@pytest.fixture(scope="module")
def trained():
    """A few eigenvalues are most of Tr(H²), as in networks that have learned something."""
    x, y = random(40, 4), classes(40, 3)
    problem = DenseProblem(after_training(network(nn.Tanh, (4, 12, 3)), x, y, 400), x, y)
    values = torch.linalg.eigvalsh(problem.truth.hessian(problem.names))
    assert values.abs().topk(3).values.square().sum() > 0.7 * values.square().sum()
    return problem


def known_of(problem, products):
    H = problem.truth.hessian(problem.names)
    run = Lanczos(
        random(1, len(H), seed=3), residual_rtol=0.0, max_products=products, max_basis=len(H)
    )
    solve([run], lambda asked: {i: rows @ H for i, rows in asked.items()})
    return run.subspace()


@pytest.mark.parametrize("known", [None, 6], ids=["sketch", "known from eigenvalues"])
def test_intervals_cover_the_dense_truth(trained, known, monkeypatch):
    """95 % of 160 are 152, give or take 3."""
    monkeypatch.setattr(module, "PILOT", 6)  # 99 parameters: 32 directions would be most of them
    truth, covered, sketches = trained.value("trace_squared"), 0, 0
    given = None if known is None else known_of(trained, known)
    for seed in range(160):
        found = trace_squared(trained.workspace(seed, rtol=0.05, max_passes=5_000), given)
        assert not found.missed
        half = found.estimate.half_width(0.95)
        assert half <= 0.05 * found.estimate.value
        covered += abs(found.estimate.value - truth) <= half
        sketches += "after 6 dominant directions" in found.text
    assert 144 <= covered <= 158
    assert sketches > 130 if known is None else sketches == 0


def test_a_sketch_saves_most_probes(trained, monkeypatch):
    plain = {}
    for name, least in (("plain", 10**9), ("sketch", module.LEAST_SKETCH)):
        monkeypatch.setattr(module, "LEAST_SKETCH", least)
        works = [trained.workspace(seed, rtol=0.05, max_passes=10**6) for seed in range(10)]
        for workspace in works:
            trace_squared(workspace)
        plain[name] = sum(workspace.products.count for workspace in works)
    assert plain["sketch"] < 0.2 * plain["plain"]


def test_of_a_matrix_of_small_rank():
    """Whatever is left outside is round-off: the value is exact, and says so."""
    net = nn.Sequential(nn.Linear(60, 2, bias=False)).double()
    x, y = random(3, 60), classes(3, 2)
    problem = DenseProblem(net, x, y)
    found = trace_squared(problem.workspace(0, rtol=1e-6, max_passes=100))
    assert found.estimate.variance == 0.0
    assert found.estimate.value == pytest.approx(problem.value("trace_squared"), rel=1e-10)
    assert re.fullmatch(r"8 weight probes after [123] dominant directions", found.text)


def test_eigenvalues_of_the_same_call_save_probes():
    x, y = random(40, 4), classes(40, 3)
    net = after_training(network(nn.Tanh, (4, 12, 3)), x, y, 400)
    truth = DenseProblem(net, x, y).value("trace_squared")
    alone = {n: sl.measure(net, (x, y), measures=n) for n in (SQUARE, LARGEST, SMALLEST)}
    both = sl.measure(net, (x, y), measures=list(alone))
    found = both[SQUARE]
    assert found.status is sl.results.Status.OK
    assert re.fullmatch(
        r"12 weight probes outside the \d+ directions of the eigenvalues", found.text
    )
    assert abs(found.value - truth) < 4 * found.stderr
    assert abs(alone[SQUARE][SQUARE].value - truth) < 4 * alone[SQUARE][SQUARE].stderr
    for name in (LARGEST, SMALLEST):
        assert both[name].value == pytest.approx(alone[name][name].value, rel=1e-5)
    assert both.cost.products < 0.7 * sum(report.cost.products for report in alone.values())


def test_a_budget_too_small_for_a_sketch_says_from_where_on_there_is_one(trained):
    first = trace_squared(trained.workspace(0, rtol=0.05, max_passes=50))
    (enough,) = re.findall(r"max_passes=(\d+) would have sufficed", first.missed)
    assert int(enough) > 50
    (needed,) = re.findall(r"from max_passes=(\d+) on", first.missed)
    assert int(needed) > 50
    assert (
        "dominant"
        not in trace_squared(trained.workspace(0, rtol=0.05, max_passes=int(needed) - 1)).text
    )
    assert "dominant" in trace_squared(trained.workspace(0, rtol=0.05, max_passes=int(needed))).text


def test_data_error_where_eigenvalues_are_known():
    """2⟨H, H_c⟩ of 16 parts of the data, from their dense Hessians; fewer probes than alone."""
    net, x, y = network(), random(64, 4) * (0.5 + random(64, 1, seed=1).abs()), classes(64, 3)
    H = DenseProblem(net, x, y).truth.hessian(["0.weight", "0.bias", "2.weight", "2.bias"])
    products = []
    for part in range(0, 64, 4):
        own = DenseProblem(net, x[part : part + 4], y[part : part + 4])
        products.append(float((own.truth.hessian(own.names) * H).sum()))
    expected = 2 * statistics.stdev(products) / 4
    asked = [SQUARE, LARGEST]
    claims = [sl.measure(net, (x, y), measures=asked, seed=s)[SQUARE] for s in range(8)]
    # 12 probes of 17 directions know it to a third each
    assert statistics.fmean(c.data_stderr for c in claims) == pytest.approx(expected, rel=0.25)
