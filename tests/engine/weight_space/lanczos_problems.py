"""Matrices with known eigenvalues, and the block Lanczos method on them."""

import torch

from spiritlevel.engine.weight_space.lanczos import Lanczos
from spiritlevel.engine.weight_space.lockstep import solve
from zoo.plain import random

N = 60
RTOL = 1e-9
SETTINGS = {"residual_rtol": RTOL, "max_products": 3000, "max_basis": 100}


def rotated(values, seed=0):
    """A dense matrix with these eigenvalues."""
    values = torch.as_tensor(values, dtype=torch.float64)
    Q = torch.linalg.qr(random(len(values), len(values), seed=seed)).Q
    A = (Q * values) @ Q.T
    return (A + A.T) / 2


def planted(*values):
    """These eigenvalues, and the rest of N between -1 and 1."""
    return rotated([*values, *torch.linspace(-1, 1, N - len(values)).tolist()])


def symmetric(n):
    A = random(n, n)
    return A + A.T


MATRICES = {
    "random": symmetric(N),
    "low rank": rotated([5.0, 3.0, 3.0, 1.0] + [0.0] * (N - 4)),
    "low rank, both signs": rotated([5.0, -4.0] + [0.0] * (N - 2)),
    "clustered": planted(*(3 + 1e-4 * torch.arange(6.0)).tolist()),
    "double": planted(4.0, 4.0, -4.0, -4.0),
    "triple": planted(4.0, 4.0, 4.0, -3.0, -3.0, -3.0),
    "1e-9 apart": planted(4.0, 4.0 * (1 + 1e-9), -3.0, -3.0 * (1 + 1e-9)),
    "positive": rotated(torch.linspace(1, 9, N)),
    "negative": rotated(-torch.linspace(1, 9, N)),
    "zero": torch.zeros(N, N, dtype=torch.float64),
    "identity": torch.eye(N, dtype=torch.float64),
    "diagonal": torch.diag(random(N, seed=3)),
    "tiny": 1e-140 * symmetric(N),
    "huge": 1e140 * symmetric(N),
    "1x1": torch.tensor([[-3.0]], dtype=torch.float64),
    "2x2": rotated([2.0, -1.0]),
    "5x5": symmetric(5),
}


class Counted:
    """Multiplies by a dense matrix and counts what it is asked for."""

    def __init__(self, A):
        self.A, self.products, self.calls = A, 0, 0

    def __call__(self, directions):
        self.calls += 1
        self.products += sum(len(rows) for rows in directions.values())
        return {i: rows @ self.A for i, rows in directions.items()}


def run(A, *, num=1, which="largest", block=None, start=None, seed=1, **settings):
    if start is None:
        start = random(block or num, len(A), seed=seed).to(A)
    operator = Counted(A)
    [found] = solve([Lanczos(start, num=num, which=which, **SETTINGS | settings)], operator)
    assert found.products == operator.products
    return found


def truth(A, num, which):
    values = torch.linalg.eigvalsh(A.double())
    smallest, largest = values[:num], values.flip(0)[:num]
    ends = {"largest": largest, "smallest": smallest, "both": torch.cat([largest, smallest])}
    return ends[which]


def assert_true(A, found, num, which):
    """Values, residuals and vectors against dense algebra in float64."""
    exact, eps = A.double(), torch.finfo(A.dtype).eps
    # Round-off of eigvalsh and of a product: a few eps·‖A‖ for each of up to N entries of a sum.
    noise = N * eps * float(torch.linalg.matrix_norm(exact, 2))
    values = truth(A, num, which)
    assert found.values.dtype == torch.float64
    assert found.vectors.dtype == A.dtype
    torch.testing.assert_close(found.values, values, rtol=RTOL, atol=noise)
    V = found.vectors.double()
    residuals = (V @ exact - found.values[:, None] * V).norm(dim=1)
    torch.testing.assert_close(found.residuals, residuals, rtol=1e-6, atol=noise)
    k = min(num, len(A))
    for end in V.split(k):  # the two ends of a small matrix share vectors
        torch.testing.assert_close(end @ end.T, torch.eye(k).double(), rtol=0, atol=N * eps)
