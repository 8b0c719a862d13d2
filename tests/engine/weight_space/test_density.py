"""Stochastic Lanczos quadrature against dense matrices: probe by probe, then in the mean."""

import json
import math

import pytest
import torch

from spiritlevel import SpiritlevelError
from spiritlevel.engine.weight_space import long_rows
from spiritlevel.engine.weight_space.density import Quadrature, SpectralDensity
from spiritlevel.engine.weight_space.lanczos import Lanczos
from spiritlevel.engine.weight_space.lockstep import solve
from zoo.plain import random

N = 80


def signs(num_vectors, size=N, seed=1):
    return random(num_vectors, size, seed=seed).sign()


def rotated(values):
    values = torch.as_tensor(values, dtype=torch.float64)
    Q = torch.linalg.qr(random(len(values), len(values))).Q
    A = (Q * values) @ Q.T
    return (A + A.T) / 2


def symmetric(n):
    A = random(n, n)
    return A + A.T


TWO_BANDS = rotated(torch.cat([torch.linspace(-1, 0, 3 * N // 4), torch.linspace(2, 3, N // 4)]))

MATRICES = {
    "random": symmetric(N),
    "two bands": TWO_BANDS,
    "low rank": rotated([5.0, -3.0, 1.0] + [0.0] * (N - 3)),
    "ill-conditioned": rotated(torch.logspace(0, -12, N, dtype=torch.float64)),
    "zero": torch.zeros(N, N, dtype=torch.float64),
    "identity": torch.eye(N, dtype=torch.float64),
    "negative": rotated(-torch.linspace(1, 9, N)),
    "1x1": torch.tensor([[-3.0]], dtype=torch.float64),
    "tiny": 1e-140 * symmetric(N),
}


def density_of(A, z, steps=20):
    run = Quadrature(z.to(A), steps=steps)
    [density] = solve([run], lambda directions: {0: directions[0] @ A})
    return density


def exact_measure(A, z):
    """Eigenvalues, and each probe's weight on them."""
    values, vectors = torch.linalg.eigh(A.double())
    return values, (z @ vectors).square() / z.square().sum(dim=1, keepdim=True)


@pytest.mark.parametrize("name", MATRICES)
def test_the_first_two_moments_of_each_probe_are_exact(name):
    A = MATRICES[name]
    z = signs(5, len(A))
    density = density_of(A, z)
    n, norm = len(A), float(torch.linalg.matrix_norm(A, 2))
    assert density.nodes.shape == density.weights.shape == (5, min(20, n))
    assert density.nodes.dtype == density.weights.dtype == torch.float64
    nodes, weights = density.nodes, density.weights
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(5).double())
    first, second = (weights * nodes).sum(dim=1), (weights * nodes.square()).sum(dim=1)
    # atol: round-off of a sum with both signs
    torch.testing.assert_close(first, ((z @ A) * z).sum(1) / n, rtol=1e-12, atol=1e-14 * norm)
    torch.testing.assert_close(
        second, (z @ A).square().sum(1) / n, rtol=1e-12, atol=1e-14 * norm**2
    )


@pytest.mark.parametrize("name", ["random", "two bands", "ill-conditioned", "low rank"])
def test_higher_moments_are_those_of_the_exact_measure(name):
    # also with orthogonality long lost, in 60 steps; round-off grows with the power
    A, z = MATRICES[name], signs(3)
    values, weights = exact_measure(A, z)
    norm = float(values.abs().max())
    for steps in (5, 60):
        density = density_of(A, z, steps=steps)
        for power in range(2 * steps):
            found = (density.weights * (density.nodes / norm) ** power).sum(dim=1)
            exact = (weights * (values / norm) ** power).sum(dim=1)
            torch.testing.assert_close(found, exact, rtol=1e-10, atol=1e-12)


def test_a_gap_in_the_spectrum_has_the_exact_mass_on_each_side():
    z = signs(4)
    values, weights = exact_measure(TWO_BANDS, z)
    density = density_of(TWO_BANDS, z, steps=60)
    below = (density.weights * (density.nodes < 1)).sum(dim=1)
    torch.testing.assert_close(below, (weights * (values < 1)).sum(dim=1), rtol=1e-12, atol=0)
    # the outermost nodes have converged to the ends of the spectrum
    ends = torch.stack([density.nodes.amin(dim=1), density.nodes.amax(dim=1)], dim=1)
    expected = torch.tensor([-1.0, 3.0]).double().expand(4, 2)
    torch.testing.assert_close(ends, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("power", [1, 2, 3, 4])
def test_moments_estimate_traces_without_bias(power):
    A = MATRICES["random"] / 10
    exact = float(torch.linalg.matrix_power(A, power).trace()) / N
    z_scores, values, errors = [], [], []
    for seed in range(60):
        value, stderr = density_of(A, signs(8, seed=seed), steps=3).moment(power)
        z_scores.append((value - exact) / stderr)
        values.append(value)
        errors.append(stderr)
    # With 8 probes a z-score is Student's t with 7 degrees of freedom: beyond 4 in 0.5% of draws.
    assert sum(abs(z) > 4 for z in z_scores) <= 3
    values = torch.tensor(values)
    spread = float(values.std())
    # The mean of all 60 within 4 of its own standard errors, and their spread as promised: the
    # standard deviation of 60 draws has a relative error of 9%.
    assert abs(float(values.mean()) - exact) < 4 * spread / math.sqrt(60)
    rms = float(torch.tensor(errors).square().mean().sqrt())
    assert spread == pytest.approx(rms, rel=0.36)


def test_a_single_probe_has_no_standard_error():
    A, z = MATRICES["random"], signs(1)
    value, stderr = density_of(A, z).moment(1)
    assert stderr is None
    assert value == pytest.approx(float(z[0] @ A @ z[0]) / N, rel=1e-12)


def test_the_standard_error_is_that_of_the_mean():
    A, z = MATRICES["random"], signs(6)
    singles = [density_of(A, row[None]).moment(2)[0] for row in z]
    value, stderr = density_of(A, z).moment(2)
    assert value == pytest.approx(sum(singles) / 6, rel=1e-12)
    squares = sum((single - value) ** 2 for single in singles)
    assert stderr == pytest.approx(math.sqrt(squares / 5 / 6), rel=1e-9)


def test_random_signs_see_the_trace_of_a_diagonal_matrix_exactly():
    value, stderr = density_of(torch.diag(random(N, seed=4)), signs(3)).moment(1)
    assert value == pytest.approx(float(random(N, seed=4).mean()), rel=1e-12)
    assert stderr < 1e-15


def test_an_invariant_subspace_ends_a_probe_early():
    A = torch.diag(torch.tensor([5.0, -3.0, 1.0, -3.0] * (N // 4)).double())
    z = torch.cat([torch.eye(N)[:1].double(), signs(2)])  # the first one is an eigenvector
    products = []

    def multiply(directions):
        products.append(len(directions[0]))
        return {0: directions[0] @ A}

    run = Quadrature(z, steps=9)
    [density] = solve([run], multiply)
    assert products == [3, 2, 2]
    assert run.products == 7
    close = {"rtol": 0, "atol": 1e-13}
    nodes = torch.tensor([[5.0] * 9] + [[-3.0, 1.0, 5.0] + [5.0] * 6] * 2).double()
    torch.testing.assert_close(density.nodes, nodes, **close)
    weights = torch.tensor([[1.0] + [0.0] * 8] + [[0.5, 0.25, 0.25] + [0.0] * 6] * 2).double()
    torch.testing.assert_close(density.weights, weights, **close)
    assert (density.weights[:, 3:] == 0).all()


def test_steps_are_at_most_the_size():
    A = symmetric(4)
    density = density_of(A, signs(2, 4), steps=50)
    assert density.nodes.shape == (2, 4)
    values = torch.linalg.eigvalsh(A)
    torch.testing.assert_close(density.nodes, values.expand(2, 4), rtol=1e-10, atol=1e-10)
    # nothing is left unseen, so every power is exact
    value, _ = density.moment(11)
    _, weights = exact_measure(A, signs(2, 4))
    assert value == pytest.approx(float((weights * values**11).sum(dim=1).mean()), rel=1e-9)


def test_float32_operators_give_moments_to_their_round_off():
    A, z = MATRICES["random"].float(), signs(3)
    density = density_of(A, z, steps=30)
    values, weights = exact_measure(A, z)
    norm = float(values.abs().max())
    for power in (1, 2, 5):
        found = (density.weights * (density.nodes / norm) ** power).sum(dim=1)
        exact = (weights * (values / norm) ** power).sum(dim=1)
        # each of 30 steps rounds at 6e-8 of the norm
        torch.testing.assert_close(found, exact, rtol=0, atol=30 * 6e-8)


def test_the_length_of_a_start_does_not_matter():
    A, z = MATRICES["random"], random(3, N)
    one, other = density_of(A, z), density_of(A, z * torch.tensor([[1e-9], [7.0], [1e9]]))
    torch.testing.assert_close(one.nodes, other.nodes, rtol=1e-9, atol=1e-9)


def test_the_curve_is_the_histogram_of_the_eigenvalues():
    values = torch.cat([torch.linspace(0, 1, 300), torch.linspace(3, 4, 100)]).double()
    A = rotated(values)
    num_vectors = 20
    grid, height = density_of(A, signs(num_vectors, 400), steps=60).curve(2000)
    edges = [-0.5, 1 / 3, 2 / 3, 2.0, 3.5, 4.5]
    exact = torch.histogram(torch.linalg.eigvalsh(A), torch.tensor(edges).double()).hist / 400
    for low, high, mass in zip(edges, edges[1:], exact, strict=False):
        inside = (grid >= low) & (grid <= high)
        found = float(torch.trapezoid(height[inside], grid[inside]))
        # A probe's mass on k of n eigenvalues has standard deviation at most √(2k)/n: 4 of them
        # for the mean; broadening and grid move at most 1% of the mass across an inner edge.
        noise = 4 * math.sqrt(2 * 400 * float(mass)) / 400 / math.sqrt(num_vectors)
        assert found == pytest.approx(float(mass), abs=noise + 0.01)
    gap = (grid > 1.3) & (grid < 2.7)
    assert gap.any()
    assert height[gap].max() < 1e-6


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("settings", [{}, {"num_points": 150}, {"relative_width": 0.05}])
def test_the_curve_integrates_to_one(name, settings):
    density = density_of(MATRICES[name], signs(3, len(MATRICES[name])))
    settings = dict(settings)
    if "relative_width" in settings:
        reach = float(density.nodes.max() - density.nodes.min()) or 1.0
        settings["width"] = settings.pop("relative_width") * reach
    if name in ("identity", "1x1") and "width" in settings:
        settings["width"] = 0.1  # their range is round-off
    grid, height = density.curve(**settings)
    assert len(grid) == len(height) == settings.get("num_points", 1000)
    assert (height >= 0).all()
    # 6 widths beyond the last node, in steps of at most one width: both errors are below 1e-8
    assert float(torch.trapezoid(height, grid)) == pytest.approx(1, abs=2e-8)


def test_a_curve_of_one_node_is_a_gaussian():
    nodes = torch.full((2, 1), 3.0).double()
    grid, height = SpectralDensity(nodes, torch.ones_like(nodes), size=9).curve(201, width=0.5)
    expected = torch.exp(-((grid - 3) ** 2) / (2 * 0.5**2)) / math.sqrt(2 * math.pi * 0.5**2)
    torch.testing.assert_close(height, expected, rtol=1e-12, atol=0)


def test_a_range_that_is_round_off_is_no_scale_for_a_width():
    nodes = torch.tensor([[7.0, 7.0 + 1e-15]]).double()
    grid, height = SpectralDensity(nodes, torch.full_like(nodes, 0.5), size=9).curve()
    assert float(torch.trapezoid(height, grid)) == pytest.approx(1, abs=2e-8)
    assert float(grid[-1] - grid[0]) == pytest.approx(12 * 7e-4, rel=1e-6)


def test_a_density_survives_json():
    density = density_of(MATRICES["low rank"], signs(2))
    back = SpectralDensity.from_dict(json.loads(json.dumps(density.to_dict())))
    assert torch.equal(back.nodes, density.nodes)
    assert torch.equal(back.weights, density.weights)
    assert back.size == N
    assert back.moment(2) == density.moment(2)


def test_quadrature_and_lanczos_share_their_passes():
    A, calls = MATRICES["random"], []

    def multiply(directions):
        calls.append(set(directions))
        return {i: rows @ A for i, rows in directions.items()}

    quadrature = Quadrature(signs(2), steps=5)
    top = Lanczos(random(1, N), residual_rtol=1e-8, max_products=99, max_basis=30)
    density, pairs = solve([quadrature, top], multiply)
    assert calls[:5] == [{0, 1}] * 5
    assert set().union(*calls[5:]) == {1}
    torch.testing.assert_close(density.nodes, density_of(A, signs(2), steps=5).nodes)
    torch.testing.assert_close(pairs.values[0], torch.linalg.eigvalsh(A)[-1])


def test_results_do_not_depend_on_the_chunks(monkeypatch):
    A, z = MATRICES["random"], signs(2)
    whole = density_of(A, z, steps=8)
    monkeypatch.setattr(long_rows, "CHUNK", 20)
    chunked = density_of(A, z, steps=8)
    torch.testing.assert_close(chunked.nodes, whole.nodes, rtol=1e-10, atol=1e-10)


def test_start_and_products_are_left_alone():
    start, A, seen = signs(2), MATRICES["random"], []
    before = start.clone().requires_grad_()
    run = Quadrature(before, steps=4)
    while not run.done:
        products = run.directions() @ A
        seen.append((products, products.clone()))
        run.update(products)
    assert torch.equal(before, start)
    assert all(torch.equal(given, kept) for given, kept in seen)
    assert run.directions().shape == (0, N)
    assert not run.result().nodes.requires_grad


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_products_are_refused(value):
    run = Quadrature(signs(2), steps=4)
    run.update(run.directions() @ MATRICES["random"])
    products = run.directions() @ MATRICES["random"]
    products[1, 3] = value
    text = r"'products' .* must be finite\. Got NaN or infinity after 2 finite products\. Check"
    with pytest.raises(SpiritlevelError, match=text):
        run.update(products)


BAD_STARTS = [
    (torch.ones(5), 3, r"'start' .* shape \(num_vectors, size\)\. Got torch.float32 .* \(5,\)"),
    (torch.ones(0, 5), 3, r"Got torch.float32 of shape \(0, 5\)\. Typical: ten rows"),
    (torch.ones(1, 5).int(), 3, r"must be a float32 or float64 tensor .* Got torch.int32"),
    (torch.tensor([[1.0, 1.0], [0, 0]]), 3, r"rows other than 0\. Got squared norms \[2.0, 0.0\]"),
    (torch.full((1, 5), torch.nan), 3, r"must have finite rows .* norms \[nan\]\. Typical: ten"),
    (torch.ones(1, 5), 0, r"'steps' .* must be at least 1\. Got 0\. Typical: 100\."),
]


@pytest.mark.parametrize(("start", "steps", "text"), BAD_STARTS)
def test_bad_arguments_are_refused(start, steps, text):
    with pytest.raises(SpiritlevelError, match=text):
        Quadrature(start, steps=steps)


def test_calls_out_of_turn_are_refused():
    run = Quadrature(signs(2), steps=1)
    with pytest.raises(SpiritlevelError, match=r"after the first update\. Got 0 products\. Call"):
        run.result()
    with pytest.raises(SpiritlevelError, match=r"shape \(2, 80\), .* Got \(1, 80\)\. Call dir"):
        run.update(random(1, N))
    run.update(run.directions() @ MATRICES["random"])
    with pytest.raises(SpiritlevelError, match=r"shape \(0, 80\), .* Got \(2, 80\)\. Call dir"):
        run.update(random(2, N))


def test_moments_beyond_the_steps_are_refused():
    density = density_of(MATRICES["random"], signs(2), steps=3)
    density.moment(5)
    text = r"'power' .* in 0\.\.5 for 3 steps\. Got 6\. For higher powers take 4 steps or more\."
    with pytest.raises(SpiritlevelError, match=text):
        density.moment(6)
    with pytest.raises(SpiritlevelError, match=r"'power' .* Got -1"):
        density.moment(-1)


def test_curves_that_cannot_be_drawn_are_refused():
    nodes = torch.tensor([[0.0, 1.0]]).double()
    density = SpectralDensity(nodes, torch.full_like(nodes, 0.5), size=9)
    with pytest.raises(
        SpiritlevelError, match=r"'width' .* positive\. Got 0\. Leave it out for 1%"
    ):
        density.curve(width=0)
    text = (
        r"'num_points' .* at least 1013, one per width\. Got 1000\. Raise it, or raise width=0.001"
    )
    with pytest.raises(SpiritlevelError, match=text):
        density.curve(width=0.001)
    assert len(density.curve(1013, width=0.001)[0]) == 1013
