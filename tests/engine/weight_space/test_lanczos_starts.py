"""The extreme eigenvalue is found from every start: small, symmetric and degenerate problems.

What is tried here on hundreds of problems was tried on thousands while it was written.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from engine.weight_space.lanczos_problems import run, truth
from spiritlevel.engine.weight_space.density import Quadrature
from spiritlevel.engine.weight_space.lanczos import LEAST_BLOCKS
from spiritlevel.engine.weight_space.lockstep import solve
from spiritlevel.math.signs import random_normals
from spiritlevel.measures.decomposition.matrices import LEAST_STEPS, largest_eigenvalues
from spiritlevel.testing import references
from zoo.plain import classes, random

SIZES = [1, 2, 3, 4, 6, 9, 20]
RTOL = 1e-6  # of the largest eigenvalue: what is asked of the residual
SYMMETRIC = torch.tensor([[1.0, 0.8], [0.8, 1.0]]).double()  # its eigenvectors are signs


def rotated(values, seed):
    Q = torch.linalg.qr(random(len(values), len(values), seed=seed)).Q
    return (Q * values) @ Q.T


def outer(v):
    return torch.outer(v, v)


def blocks(n, seed):
    parts = [random(n - n // 2, n - n // 2, seed=seed), 3 * random(n // 2, n // 2, seed=seed + 1)]
    return torch.block_diag(*[part + part.T for part in parts if part.numel()])


def ring(n):
    shift = torch.eye(n).double().roll(1, 0)
    return shift + shift.T


def matrices(n, seed):
    """Degenerate in every way that small networks are."""
    whole = torch.Generator().manual_seed(seed)
    pairs = [torch.tensor([[2.0, 1.0], [1.0, 2.0]]).double()] * max(1, n // 2)
    return {
        "identity": 3 * torch.eye(n).double(),
        "zero": torch.zeros(n, n).double(),
        "negative": rotated(-random(n, seed=seed).abs() - 0.1, seed),
        "one direction": outer(random(n, seed=seed)),
        "ones": torch.ones(n, n).double(),
        "repeated": rotated(torch.randint(0, 3, (n,), generator=whole).double(), seed),
        "low rank": (lambda a: a.T @ a)(random(max(1, n // 3), n, seed=seed)),
        "identity and one more": torch.eye(n).double() + outer(F.normalize(random(n), dim=0)),
        "blocks": blocks(n, seed),
        "equal blocks": torch.block_diag(*pairs),
        "ring": ring(n),
        "graded": rotated(10.0 ** (-12 * torch.rand(n, generator=whole).double()), seed),
        "diagonal": torch.diag(random(n, seed=seed)),
    }


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("num", "which"), [(1, "largest"), (1, "smallest"), (3, "both")])
def test_degenerate_matrices(size, num, which):
    for seed in range(3):
        for name, A in matrices(size, seed).items():
            start = random_normals(seed, 1, torch.arange(num), len(A), torch.float64)
            found = run(A, num=num, which=which, start=start, residual_rtol=RTOL)
            assert found.converged.all(), (name, seed)
            expected, noise = truth(A, num, which), RTOL * float(A.abs().max())
            torch.testing.assert_close(found.values, expected, rtol=RTOL, atol=noise, msg=name)


@pytest.mark.parametrize("start", [[1.0, -1.0], [1.0, 1.0]])
def test_a_start_that_is_an_eigenvector(start):
    found = run(SYMMETRIC, start=torch.tensor([start]).double())
    assert found.converged.all()
    assert float(found.values) == pytest.approx(1.8)


def test_a_start_in_an_invariant_subspace():
    A = torch.block_diag(*[random(6, 6, seed=s) for s in (0, 1)])
    A = A + A.T
    A[6:, 6:] *= 5
    start = torch.cat([random(1, 6), torch.zeros(1, 6).double()], dim=1)
    found = run(A, start=start)
    assert found.converged.all()
    torch.testing.assert_close(found.values, truth(A, 1, "largest"))


def test_little_of_the_eigenvector_in_the_start():
    """The residual of another eigenvector is small at once, and that must not count."""
    A = torch.eye(50).double()
    A[0, 0] = 2.0
    start = torch.ones(1, 50).double()
    start[0, 0] = 1e-2
    found = run(A, start=start, residual_rtol=1e-2)
    assert float(found.values) == pytest.approx(2.0)
    few = run(torch.diag(random(50)), max_products=LEAST_BLOCKS - 1, residual_rtol=0.9)
    assert not few.converged.any()


def test_samples_with_little_of_the_eigenvector_in_the_start():
    A = torch.eye(50).double()
    A[0, 0] = 2.0
    start = torch.ones(1, 50).double()
    start[0, 0] = 1e-2
    found = largest_eigenvalues(
        lambda v: v @ A,
        start,
        max_steps=40,
        enough=lambda values, residuals: bool((residuals <= 1e-2 * values).all()),
    )
    assert float(found.values) == pytest.approx(2.0)
    assert found.steps == LEAST_STEPS


# -- through the library --------------------------------------------------------------------------


def correlated():
    """Mean x xᵀ is SYMMETRIC, so the Hessian of "mse" is twice that: 3.6 and 0.4."""
    Q = torch.linalg.qr(random(50, 2)).Q * 50**0.5
    x = torch.stack([Q[:, 0], 0.8 * Q[:, 0] + 0.6 * Q[:, 1]], dim=1)
    return nn.Linear(2, 1, bias=False).double(), (x, x[:, :1])


@pytest.mark.parametrize("seed", range(8))
def test_two_weights(seed):
    model, data = correlated()
    for which, value in (("largest", 3.6), ("smallest", 0.4)):
        found = sl.eigenvalues(model, data, loss="mse", seed=seed, which=which)
        assert found.values == pytest.approx([value])
        assert found.converged == [True]
    names = ["curvature.lambda_max", "curvature.lambda_min", "head.lambda_max", "scaled.lambda_max"]
    report = sl.measure(model, data, loss="mse", seed=seed, measures=names)
    squares = float(model.weight.detach().square().sum())
    for name, value in zip(names, [3.6, 0.4, 3.6, 3.6 * squares], strict=True):
        assert report[name].value == pytest.approx(value), name


def dense_spectrum(model, data, loss=F.cross_entropy, names=None):
    reference = references.Truth(copy.deepcopy(model), [data], loss)
    return torch.linalg.eigvalsh(reference.hessian(names or list(reference.parameters)))


@pytest.mark.parametrize("seed", range(12))
def test_a_small_head(seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Linear(2, 2).double()
    data = random(20, 2, seed=seed), classes(20, 2)
    found = sl.measure(model, data, measures="head.lambda_max", seed=seed)["head.lambda_max"]
    expected = dense_spectrum(model, data, names=["weight"])[-1]
    assert found.exact
    assert found.value == pytest.approx(float(expected), rel=1e-7)


class Twins(nn.Module):
    """Two equal halves on two equal inputs: swapping them is a symmetry of the Hessian."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(2, 2), nn.Linear(2, 2)
        self.right.load_state_dict(self.left.state_dict())

    def forward(self, x):
        return self.left(x) + self.right(x)


class Apart(nn.Module):
    """Two parts that do not meet: the Hessian has two blocks."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(2, 1), nn.Linear(2, 1)

    def forward(self, x):
        return torch.cat([self.left(x[:, :2]), self.right(3 * x[:, 2:])], dim=1)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", [Twins, Apart])
def test_symmetric_and_separate_networks(kind, seed):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = kind().double().eval()
    inputs, loss = (2, "cross_entropy") if kind is Twins else (4, "mse")
    targets = classes(9, 2) if kind is Twins else random(9, 2, seed=2)
    data = random(9, inputs), targets
    plain = F.cross_entropy if kind is Twins else F.mse_loss
    expected = dense_spectrum(model, data, plain)
    found = sl.eigenvalues(model, data, loss=loss, num=2, which="both", seed=seed)
    ends = [*expected.flip(0)[:2].tolist(), *expected[:2].tolist()]
    # a Hessian with many eigenvalues 0 has them to round-off of the largest
    assert found.values == pytest.approx(ends, rel=1e-6, abs=1e-12 * float(expected[-1]))
    assert all(found.converged)


@pytest.mark.parametrize("seed", range(6))
def test_the_density_reaches_both_ends(seed):
    model, data = correlated()
    found = sl.density(model, data, loss="mse", num_vectors=2, steps=5, seed=seed)
    for nodes, weights in zip(found.nodes, found.weights, strict=True):
        reached = nodes[weights > 0]
        assert [float(reached.min()), float(reached.max())] == pytest.approx([0.4, 3.6])


def test_moments_of_the_density_are_unbiased():
    """The mean over 400 vectors is within 4 of its standard errors of Tr Hᵏ / n."""
    A = blocks(9, 0)
    start = random_normals(5, 1, torch.arange(400), 9, torch.float64)
    [found] = solve([Quadrature(start, steps=9)], lambda rows: {0: rows[0] @ A})
    for power in (1, 2, 3):
        mean, error = found.moment(power)
        expected = float(torch.linalg.matrix_power(A, power).trace()) / 9
        assert abs(mean - expected) < 4 * error


def test_a_warm_start_does_not_hide_a_new_eigenvalue():
    """The old top eigenvector stays one, and another direction becomes steeper."""
    model, (x, y) = Apart().double().eval(), (random(9, 4), random(9, 2, seed=2))
    before = sl.eigenvalues(model, (x, y), loss="mse")
    other = x.clone()
    other[:, :2] *= 100  # the left part, which was the flatter one
    found = sl.eigenvalues(model, (other, y), loss="mse", start=before)
    expected = dense_spectrum(model, (other, y), F.mse_loss)[-1]
    assert found.converged == [True]
    assert found.values == pytest.approx([float(expected)])
