"""Output Hessians against dense matrices, and against 80-digit decimals where floats give out."""

import pytest
import torch
import torch.nn.functional as F

from spiritlevel.math.curvature import DenseCurvature, DiagonalCurvature, SoftmaxCurvature
from zoo import decimal_softmax as exact
from zoo.plain import random

N, C, D = 5, 4, 3


def dense_softmax(logits, mass):
    """mass · ∇² of cross-entropy by autograd, sample by sample."""
    target = torch.zeros(logits.shape[1], dtype=torch.float64)
    target[0] = 1.0
    return torch.stack(
        [
            m * torch.func.hessian(lambda v: F.cross_entropy(v[None], target[None]))(z)
            for z, m in zip(logits, mass, strict=True)
        ]
    )


def softmax_case(seed):
    mass = random(N, seed=seed + 10).abs() + 0.1
    logits = 2 * random(N, C, seed=seed)
    return SoftmaxCurvature(logits, mass), dense_softmax(logits, mass)


def diagonal_case(seed):
    diagonal = random(N, C, seed=seed)  # both signs: a concave loss has negative entries
    return DiagonalCurvature(diagonal), torch.diag_embed(diagonal)


def dense_case(seed):
    matrices = random(N, C, C, seed=seed)
    matrices = matrices + matrices.mT
    return DenseCurvature(matrices), matrices


KINDS = {"softmax": softmax_case, "diagonal": diagonal_case, "dense": dense_case}


@pytest.fixture(params=KINDS)
def case(request):
    return KINDS[request.param]


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


def test_trace_is_that_of_the_dense_matrix(case):
    curvature, A = case(0)
    close(curvature.trace(), torch.stack([a.trace() for a in A]))


def test_quadratic_is_the_trace_of_the_product(case):
    curvature, A = case(0)
    W = random(C, D, seed=3)
    close(curvature.quadratic(W), torch.stack([(W.T @ a @ W).trace() for a in A]))


def test_apply_is_the_matrix_vector_product(case):
    curvature, A = case(0)
    v = random(N, C, seed=4)
    close(curvature.apply(v), torch.stack([a @ x for a, x in zip(A, v, strict=True)]))


def test_pairs_are_traces_of_products(case):
    left, A = case(0)
    right, B = case(1)
    close(left.pairs(right), torch.stack([torch.stack([(a @ b).trace() for b in B]) for a in A]))
    close(left.pairs(left), torch.stack([torch.stack([(a @ b).trace() for b in A]) for a in A]))


def test_columns_reassemble_the_matrix(case):
    curvature, A = case(0)
    columns = list(curvature.columns())
    assert len(columns) == curvature.num_columns
    total = torch.zeros_like(A)
    for column, sign in columns:
        assert set(sign.tolist()) <= {1.0, -1.0}
        total += sign[:, None, None] * column[:, :, None] * column[:, None, :]
    close(total, A)


def test_softmax_needs_one_column_less_than_classes():
    curvature, _ = softmax_case(0)
    assert curvature.num_columns == C - 1


def test_negative_eigenvalues_keep_their_sign():
    A = torch.diag_embed(torch.tensor([[2.0, -3.0]], dtype=torch.float64))
    for curvature in (DenseCurvature(A), DiagonalCurvature(A.diagonal(dim1=1, dim2=2))):
        signs = sorted(float(sign) for _, sign in curvature.columns())
        assert signs == [-1.0, 1.0]


@pytest.mark.parametrize("logits", [[0.0, 0.0, 0.0], [5.0, 5.0, -1.0], [-800.0, 900.0, 0.0]])
def test_ties_and_certainty_do_not_break_the_columns(logits):
    z = torch.tensor([logits], dtype=torch.float64)
    curvature = SoftmaxCurvature(z)
    total = sum(c[:, :, None] * c[:, None, :] for c, _ in curvature.columns())
    p = z.softmax(dim=1)
    close(total, torch.diag_embed(p) - p[:, :, None] * p[:, None, :])


# -- where subtracting from 1 leaves nothing ---------------------------------------------------

MARGINS = [20, 30, 40, 50, 60]


def confident(margin):
    """Logits of two samples whose largest class leads by `margin` and a bit; float32 holds them."""
    return [
        [float(margin), 0.0, -0.75, 0.5],
        [-1.25, 0.25, float(margin) + 0.5, 0.375],
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("margin", MARGINS)
def test_a_confident_softmax_keeps_its_digits(margin, dtype):
    rows = confident(margin)
    W = [[0.5, -1.0, 2.0], [1.5, 0.25, 0.0], [-0.5, 1.0, 1.0], [0.125, 2.0, -1.0]]
    curvature = SoftmaxCurvature(torch.tensor(rows, dtype=dtype))
    # float32 rounds e^z to 7 digits; float64 to 16. The formulas themselves lose nothing.
    rel = 1e-6 if dtype is torch.float32 else 1e-14
    expected = [float(exact.gini(row)) for row in rows]
    assert curvature.gini().tolist() == pytest.approx(expected, rel=rel, abs=0)
    assert curvature.trace().tolist() == pytest.approx(expected, rel=rel, abs=0)
    expected = [float(exact.quadratic(row, W)) for row in rows]
    found = curvature.quadratic(torch.tensor(W, dtype=dtype)).tolist()
    assert found == pytest.approx(expected, rel=rel, abs=0)
    same, other = float(exact.pair(rows[0], rows[0])), float(exact.pair(rows[0], rows[1]))
    pairs = curvature.pairs(curvature)[0].tolist()
    for found, expected in zip(pairs, (same, other), strict=True):
        if expected > torch.finfo(dtype).tiny:  # a square of 1e-20 is below the range of float32
            assert found == pytest.approx(expected, rel=rel, abs=0)
    columns = torch.stack([column for column, _ in curvature.columns()], dim=1)
    found = columns.square().sum(dim=(1, 2)).tolist()
    assert found == pytest.approx([float(exact.gini(row)) for row in rows], rel=rel, abs=0)


@pytest.mark.parametrize("shift", [0.0, 1000.0])
def test_rows_that_nearly_agree_keep_their_digits(shift):
    # The two likely classes have almost one weight vector; what they differ by is all there is.
    tiny = 2.0**-20
    W = [[1.0, 2.0, 3.0], [1.0 + tiny, 2.0 - tiny, 3.0 + tiny], [-5.0, 1.0, 0.0]]
    W = [[w + shift for w in row] for row in W]
    logits = [10.0, 9.5, -40.0]
    curvature = SoftmaxCurvature(torch.tensor([logits], dtype=torch.float64))
    found = float(curvature.quadratic(torch.tensor(W, dtype=torch.float64)))
    # Σ p_i w_i rounds at 1e-13 where the weights are 1000, and 1e-6 of it is what counts
    assert found == pytest.approx(float(exact.quadratic(logits, W)), rel=1e-6, abs=0)


@pytest.mark.parametrize("margin", MARGINS)
def test_columns_of_a_confident_softmax_reassemble_every_entry(margin):
    rows = confident(margin)
    curvature = SoftmaxCurvature(torch.tensor(rows, dtype=torch.float64))
    total = sum(c[:, :, None] * c[:, None, :] for c, _ in curvature.columns())
    for n, row in enumerate(rows):
        for i, expected in enumerate(exact.matrix(row)):
            assert total[n, i].tolist() == pytest.approx([float(a) for a in expected], rel=1e-13)


@pytest.mark.parametrize("margin", MARGINS)
def test_the_naive_form_fails_here_in_float32(margin):
    rows = confident(margin)
    p = torch.tensor(rows, dtype=torch.float32).softmax(dim=1)
    naive = (1 - p.square().sum(dim=1)).tolist()
    expected = [float(exact.gini(row)) for row in rows]
    assert naive != pytest.approx(expected, rel=0.9, abs=0)


def test_the_naive_form_fails_at_margin_60_in_float64_too():
    rows = confident(60)
    p = torch.tensor(rows, dtype=torch.float64).softmax(dim=1)
    assert (1 - p.square().sum(dim=1)).tolist() == [0.0, 0.0]
    assert all(float(exact.gini(row)) > 1e-27 for row in rows)
