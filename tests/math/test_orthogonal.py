"""Uniform orthogonal matrices: their moments from theory, and the factorization behind them."""

import math

import pytest
import torch

from spiritlevel.math.feature_matrices import haar_rows, unique_qr

DRAWS = 2000


def matrices(count, size, draws=DRAWS):
    generator = torch.Generator().manual_seed(3)
    return torch.stack([haar_rows(count, size, generator) for _ in range(draws)])


def check_mean(values, expected):
    """Within 4.5 standard errors: chance exceeds them once in 100,000."""
    error = float(values.std()) / math.sqrt(len(values))
    assert abs(float(values.mean()) - expected) <= 4.5 * error


@pytest.fixture(scope="module")
def square():
    return matrices(4, 4)


def test_rows_are_orthonormal(square):
    eye = torch.eye(4, dtype=torch.float64).expand(DRAWS, 4, 4)
    torch.testing.assert_close(square @ square.mT, eye, rtol=0, atol=1e-12)


def test_moments_of_one_entry(square):
    m = 4
    for i in range(4):
        for j in range(4):
            entry = square[:, i, j]
            check_mean(entry, 0.0)  # fails for the raw QR, whose diagonal has one sign
            check_mean(entry**2, 1 / m)
            check_mean(entry**4, 3 / (m * (m + 2)))


def test_moments_of_several_entries(square):
    m = 4
    a, b, c, d = square[:, 0, 0], square[:, 0, 1], square[:, 1, 0], square[:, 1, 1]
    check_mean(a**2 * b**2, 1 / (m * (m + 2)))  # one row
    check_mean(a**2 * d**2, (m + 1) / ((m - 1) * m * (m + 2)))  # different rows and columns
    check_mean(a * b * c * d, -1 / ((m - 1) * m * (m + 2)))
    check_mean(torch.linalg.det(square), 0.0)  # rotations and reflections alike


def test_turning_changes_nothing(square, generator):
    turn, _ = torch.linalg.qr(torch.randn(4, 4, generator=generator, dtype=torch.float64))
    for turned in (square @ turn, turn @ square):
        check_mean(turned[:, 0, 0] ** 2 * turned[:, 1, 1] ** 2, 5 / (3 * 4 * 6))


def test_some_rows_are_rows_of_a_whole_matrix():
    m = 6
    rows = matrices(2, m, 2000)
    check_mean(rows[:, 0, 3] ** 4, 3 / (m * (m + 2)))
    check_mean(rows[:, 0, 0] * rows[:, 0, 1] * rows[:, 1, 0] * rows[:, 1, 1], -1 / (5 * 6 * 8))


def test_one_dimension_is_a_sign():
    signs = matrices(1, 1, 400)
    assert set(signs.flatten().tolist()) == {1.0, -1.0}


def test_unique_qr(generator):
    matrix = torch.randn(3, 6, 4, generator=generator, dtype=torch.float64)
    Q, R = unique_qr(matrix)
    torch.testing.assert_close(Q @ R, matrix)
    assert bool((R.diagonal(dim1=-2, dim2=-1) >= 0).all())
    torch.testing.assert_close(R, R.triu())
