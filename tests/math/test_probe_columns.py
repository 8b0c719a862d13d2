"""Output probes: over all sign vectors the outer products of a probe average to the Hessian."""

import itertools
from decimal import Decimal

import pytest
import torch

from spiritlevel.math.curvature import DenseCurvature, DiagonalCurvature, SoftmaxCurvature
from spiritlevel.math.positions import PositionCurvature, Positions
from zoo import decimal_softmax
from zoo.plain import random

N = 4


def softmax_matrix(logits):
    """diag(p) − pp' of each row."""
    p = logits.softmax(dim=1)
    return torch.diag_embed(p) - p[:, :, None] * p[:, None, :]


def all_signs(count):
    """Every vector of signs."""
    return torch.tensor(list(itertools.product([-1.0, 1.0], repeat=count)), dtype=torch.float64)


def check_average_is(curvature, matrices):
    """Σ σ·column·column' averaged over all signs is A."""
    every = all_signs(curvature.num_signs)
    total = torch.zeros_like(matrices)
    for signs in every:
        for column, sign in curvature.probe(signs.expand(len(matrices), -1)):
            assert column.shape == matrices.shape[:2]
            assert set(sign.tolist()) <= {-1.0, 1.0}
            total += sign[:, None, None] * column[:, :, None] * column[:, None, :]
    scale = float(matrices.abs().max())
    torch.testing.assert_close(total / len(every), matrices, rtol=1e-12, atol=1e-14 * scale)


@pytest.mark.parametrize("classes", [2, 3, 5, 8])
def test_softmax(classes):
    logits = 2 * random(N, classes)
    check_average_is(SoftmaxCurvature(logits), softmax_matrix(logits))


def test_softmax_with_masses():
    logits, mass = random(N, 4), torch.tensor([1.0, 0.3, 0.0, 2.5]).double()
    check_average_is(SoftmaxCurvature(logits, mass), mass[:, None, None] * softmax_matrix(logits))


def test_softmax_with_two_equal_largest_classes():
    logits = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    check_average_is(SoftmaxCurvature(logits), softmax_matrix(logits))


def test_diagonal():
    a = random(N, 5).abs()
    check_average_is(DiagonalCurvature(a), torch.diag_embed(a))


def test_diagonal_with_both_signs():
    a = random(N, 5)
    a[0, 1] = 0.0
    assert a.min() < 0 < a.max()
    check_average_is(DiagonalCurvature(a), torch.diag_embed(a))


@pytest.mark.parametrize("shift", [0.0, 10.0, -10.0], ids=["indefinite", "positive", "negative"])
def test_dense(shift):
    A = random(N, 5, 5)
    A = A + A.mT + shift * torch.eye(5, dtype=torch.float64)
    check_average_is(DenseCurvature(A), A)


def test_dense_zero():
    A = torch.zeros(2, 3, 3, dtype=torch.float64)
    check_average_is(DenseCurvature(A), A)


def block_diagonal(blocks, positions, class_dim):
    """Blocks (N, positions, C, C) as matrices over the outputs as they lie in memory."""
    n, count, classes, _ = blocks.shape
    place = torch.arange(count * classes).reshape(
        (count, classes) if class_dim == 2 else (classes, count)
    )
    place = place if class_dim == 2 else place.T  # (positions, classes)
    whole = torch.zeros(n, count * classes, count * classes, dtype=torch.float64)
    for t in range(count):
        whole[:, place[t][:, None], place[t]] = blocks[:, t]
    return whole


@pytest.mark.parametrize("class_dim", [1, 2], ids=["classes first", "classes last"])
@pytest.mark.parametrize("kind", ["softmax", "dense"])
def test_positions(class_dim, kind):
    count, classes = 3, 3
    positions = Positions((classes, count) if class_dim == 1 else (count, classes), class_dim)
    if kind == "softmax":
        logits = random(N * count, classes)
        rows, A = SoftmaxCurvature(logits), softmax_matrix(logits)
    else:
        A = random(N * count, classes, classes)
        A = A + A.mT  # some positions have no negative eigenvalue, others do
        rows = DenseCurvature(A)
    whole = block_diagonal(A.unflatten(0, (N, count)), positions, class_dim)
    check_average_is(PositionCurvature(rows, positions), whole)


def decimal_probe(logits, signs):
    """√p∘r − p (√p·r) in 80 digits."""
    p = decimal_softmax.probabilities(logits)
    with decimal_softmax._precise():
        x = [q.sqrt() * Decimal(r) for q, r in zip(p, signs, strict=True)]
        total = sum(x)
        return [float(a - q * total) for a, q in zip(x, p, strict=True)]


# From a coin toss to 1 − p = 1e-26: one minus that is exactly 1 in float64.
@pytest.mark.parametrize("margin", [0.0, 1.0, 10.0, 37.0, 60.0])
def test_confident_softmax_keeps_its_digits(margin):
    logits = [margin, 0.0, -1.5, 0.25]
    curvature = SoftmaxCurvature(torch.tensor([logits], dtype=torch.float64))
    for signs in all_signs(4):
        ((column, sign),) = curvature.probe(signs[None])
        truth = torch.tensor(decimal_probe(logits, signs.tolist()), dtype=torch.float64)
        # the entries of one column add up from √p of all classes: compare at the column's size
        size = float(truth.abs().max())
        torch.testing.assert_close(column[0], truth, rtol=1e-12, atol=1e-14 * size)
        assert sign.tolist() == [1.0]


@pytest.mark.parametrize("margin", [37.0, 60.0])
def test_confident_softmax_averages_to_its_gini(margin):
    logits = [0.5, margin, 0.0, -1.5]
    curvature = SoftmaxCurvature(torch.tensor([logits], dtype=torch.float64))
    squares = [curvature.probe(signs[None])[0][0].square().sum() for signs in all_signs(4)]
    mean = float(torch.stack(squares).mean())
    assert mean == pytest.approx(float(decimal_softmax.gini(logits)), rel=1e-12, abs=0)


def test_probability_that_underflows_gives_zero_and_not_nan():
    curvature = SoftmaxCurvature(torch.tensor([[0.0, -2000.0, -3000.0]], dtype=torch.float64))
    for signs in all_signs(3):
        ((column, _),) = curvature.probe(signs[None])
        assert column.tolist() == [[0.0, 0.0, 0.0]]
