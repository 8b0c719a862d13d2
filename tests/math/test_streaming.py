"""The streamed head: unchunked float64 formulas, 80-digit decimals, dense Hessians, and memory."""

import math

import pytest
import torch

from spiritlevel.math.curvature import SoftmaxCurvature
from spiritlevel.math.streaming import stream_product, stream_tokens
from zoo import decimal_softmax as exact
from zoo.plain import linear_head, random

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
HALF = {torch.bfloat16: 2.0**-9, torch.float16: 2.0**-11}  # half an ulp: what rounding costs
BUDGETS = [1, 3_000, 20_000, 100_000, 2**40]  # from 1 token × 16 classes to everything at once


def unchunked(features, weight, bias):
    """Logits and curvature from one T × C matrix in float64."""
    logits = features.double() @ weight.double().T
    logits = logits if bias is None else logits + bias.double()
    return logits, SoftmaxCurvature(logits)


def assert_sums(sums, features, weight, bias, *, rtol, rtol_quadratic=None):
    logits, curvature = unchunked(features, weight, bias)
    close = {"rtol": rtol, "atol": 0.0}
    torch.testing.assert_close(sums.logsumexp, logits.logsumexp(dim=1), rtol=rtol, atol=rtol)
    torch.testing.assert_close(sums.gini, curvature.gini(), **close)
    if rtol_quadratic is not None:
        close["rtol"] = rtol_quadratic
    torch.testing.assert_close(sums.quadratic, curvature.quadratic(weight.double()), **close)
    assert torch.equal(sums.top, logits.argmax(dim=1))


# -- the same numbers however they are cut -----------------------------------------------------


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("shape", [(7, 2, 3), (1, 50, 1), (9, 333, 8), (50, 331, 16)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_sums_are_those_of_the_whole_matrix(shape, bias, budget):
    args = linear_head(*shape, bias=bias)
    # round-off: a logit of 20 is off by 4e-15 and its exponential by as much
    assert_sums(stream_tokens(*args, kappa=True, budget=budget), *args, rtol=1e-12)


@pytest.mark.parametrize("budget", [1, 100_000, 2**40])
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_lower_precision_costs_what_rounding_costs(dtype, budget):
    args = linear_head(12, 230, 16, dtype=dtype)
    sums = stream_tokens(*args, kappa=True, budget=budget)
    assert {t.dtype for t in (sums.logsumexp, sums.gini, sums.quadratic)} == {torch.float64}
    # float32 logits of up to 20 are off by a few 1e-6, and exponentials as much. In half precision
    # e^z is rounded for κ: by a factor within 1 ± ε, twice (numerator and normalization).
    rtol_quadratic = 2 * HALF[dtype] + 1e-5 if dtype in HALF else 1e-5
    assert_sums(sums, *args, rtol=1e-5, rtol_quadratic=rtol_quadratic)


def test_features_and_weights_may_differ_in_type():
    features, weight, bias = linear_head(20, 300, 8)
    for pair in [(features.float(), weight.bfloat16()), (features.bfloat16(), weight.float())]:
        sums = stream_tokens(*pair, bias.float(), kappa=True, budget=20_000)
        # as above: float32 logits, and bfloat16 rounding for κ at worst
        assert_sums(sums, *pair, bias.float(), rtol=1e-5, rtol_quadratic=2.0**-8 + 1e-5)


def test_without_kappa_the_rest_is_the_same():
    args = linear_head(30, 400, 8)
    plain, full = (stream_tokens(*args, kappa=k, budget=9_000) for k in (False, True))
    assert plain.quadratic is None
    assert torch.equal(plain.top, full.top)
    # round-off only: with κ the rows are centred, so the logits are rounded differently
    torch.testing.assert_close(plain.gini, full.gini, rtol=1e-12, atol=0)
    torch.testing.assert_close(plain.logsumexp, full.logsumexp, rtol=1e-12, atol=1e-12)


def test_no_tokens_give_empty_sums():
    features, weight, bias = linear_head(0, 50, 4)
    sums = stream_tokens(features, weight, bias, kappa=True, budget=2**20)
    assert [len(t) for t in (sums.logsumexp, sums.top, sums.gini, sums.quadratic)] == [0] * 4
    product = stream_product(features, weight, bias, sums, features[:, 0], weight, budget=2**20)
    assert torch.equal(product, torch.zeros_like(weight))


def test_a_single_class_has_no_curvature():
    features, weight, bias = linear_head(3, 1, 4)
    sums = stream_tokens(features, weight, bias, kappa=True, budget=2**20)
    assert sums.gini.tolist() == sums.quadratic.tolist() == [0.0] * 3


def test_gradients_are_not_recorded():
    features, weight, bias = (t.requires_grad_() for t in linear_head(3, 20, 4))
    sums = stream_tokens(features, weight, bias, kappa=True, budget=2**20)
    product = stream_product(features, weight, bias, sums, torch.ones(3), weight, budget=2**20)
    assert not any(t.requires_grad for t in (sums.logsumexp, sums.quadratic, product))


# -- who leads ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("order", ["rising", "falling", "level", "tied at the end"])
def test_every_order_of_leaders(order, dtype):
    # 100 classes in chunks of 16: each chunk brings a new leader, or none does, or all are equal.
    C = 100
    bias = {
        "rising": torch.arange(C) / 8,
        "falling": -torch.arange(C) / 8,
        "level": torch.zeros(C),
        "tied at the end": torch.cat([torch.zeros(C - 2), torch.full((2,), 4.0)]),
    }[order].to(dtype)
    features = torch.zeros(2, 3, dtype=dtype)
    weight = (torch.arange(3 * C).reshape(C, 3) % 7 / 4).to(dtype)
    sums = stream_tokens(features, weight, bias, kappa=True, budget=1)
    rtol_quadratic = 2 * HALF.get(dtype, 0.0) + 1e-6
    # the logits are exact in every type, so float32 leaves its own 1e-7
    assert_sums(sums, features, weight, bias, rtol=1e-6, rtol_quadratic=rtol_quadratic)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("allowed", [1, 2, 40])
def test_masked_classes_take_no_part(allowed, dtype):
    features, weight, bias = linear_head(4, 50, 8, dtype=dtype)
    bias[allowed:] = -math.inf
    sums = stream_tokens(features, weight, bias, kappa=True, budget=1)
    rest = stream_tokens(features, weight[:allowed], bias[:allowed], kappa=True, budget=1)
    # rounded as in the tests above: the two cut the classes alike but centre them differently
    torch.testing.assert_close(sums.gini, rest.gini, rtol=1e-5, atol=0)
    rtol = 4 * HALF.get(dtype, 0.0) + 1e-5
    torch.testing.assert_close(sums.quadratic, rest.quadratic, rtol=rtol, atol=0)


# -- where subtracting from 1 leaves nothing ---------------------------------------------------

MARGINS = [20, 28, 40, 60]  # 28: 1 − p_top is 1e-12


def confident(margin):
    """Two tokens whose largest class leads by about `margin`; every number here is exact."""
    weight = [[(3 * i * i + 5 * j + i * j) % 11 / 4 - 1 for j in range(4)] for i in range(32)]
    bias = [(7 * i % 9) / 16 for i in range(32)]
    bias[20] = float(margin)
    features = [[0.25, -0.5, 0.5, 0.125], [-0.125, 0.25, 0.0, 0.5]]
    return features, weight, bias


@pytest.mark.parametrize("budget", [1, 2**30])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("margin", MARGINS)
def test_a_confident_token_keeps_its_digits(margin, dtype, budget):
    features, weight, bias = confident(margin)
    tensors = [torch.tensor(x, dtype=dtype) for x in (features, weight, bias)]
    for tensor, x in zip(tensors, (features, weight, bias), strict=True):
        assert tensor.tolist() == x  # meta: nothing was rounded on the way
    sums = stream_tokens(*tensors, kappa=True, budget=budget)
    logits = [exact.affine(weight, bias, phi) for phi in features]
    # float32 rounds each e^z to 7 digits, float64 to 16; the formulas themselves lose nothing
    rel = 1e-14 if dtype is torch.float64 else 1e-6
    assert sums.gini.tolist() == pytest.approx([float(exact.gini(z)) for z in logits], rel=rel)
    expected = [float(exact.quadratic(z, weight)) for z in logits]
    rel = 2 * HALF.get(dtype, 0.0) + 10 * rel  # the 10: w_i − w_top is half as long as w_i at times
    assert sums.quadratic.tolist() == pytest.approx(expected, rel=rel, abs=0)
    assert sums.top.tolist() == [20, 20]


def test_a_lead_beyond_the_range_of_float32_keeps_its_digits():
    # e^-200 is no float32 and 1 − p is 0 with 80 digits too, so the truth is the tail in float64
    features, weight, bias = (torch.tensor(x) for x in confident(200))
    sums = stream_tokens(features, weight, bias, kappa=True, budget=1)
    assert float(sums.gini.max()) < 1e-80
    # the logits near 200 are exact; float32 leaves 1e-7
    assert_sums(sums, features, weight, bias, rtol=1e-6, rtol_quadratic=1e-6)


# Where nothing averages out and each token rounds to another side: one class beside the leader; one
# with almost its row; 15 that round alike while the leader, with little probability, lies far off.
RIVAL = [0.0, 30.0] + [-60.0] * 14
ONE_SIDED = {
    "one rival": ([[1.0], [-1.0]] + [[0.0]] * 14, RIVAL, (-4, 4)),
    "a rival much like the leader": ([[4.0], [4.25]] + [[0.0]] * 14, RIVAL, (-4, 4)),
    "an outlier leads": ([[-8.0]] + [[0.25]] * 15, [0.0] + [-0.5] * 15, (-0.125, 0.0)),
}


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("case", ONE_SIDED)
def test_the_rounded_variance_is_off_by_its_bound_at_most(case, dtype):
    rows, bias, ends = ONE_SIDED[case]
    weight, bias = torch.tensor(rows, dtype=dtype), torch.tensor(bias, dtype=dtype)
    features = torch.linspace(*ends, 400)[:, None].to(dtype)
    sums = stream_tokens(features, weight, bias, kappa=True, budget=2**30)
    _, curvature = unchunked(features, weight, bias)
    off = (sums.quadratic / curvature.quadratic(weight.double()) - 1).abs().max()
    # float32 sums leave 1e-7 of ‖w − μ‖², which is up to 250 times ‖w − w_top‖² here
    assert float(off) <= 2 * HALF[dtype] + 5e-5
    torch.testing.assert_close(sums.gini, curvature.gini(), rtol=2e-6, atol=0)  # not rounded


@pytest.mark.parametrize("offset", [0.0, 64.0, 1024.0])
def test_rows_that_nearly_agree_keep_their_digits(offset):
    # All rows lie within 1/4 of one far-off row; float32 sums of the rows themselves would keep
    # ε·offset²/(1/4)², which is 100 % at 1024. The numbers and their mean are exact in float32.
    weight = [[offset + (i * (j + 3) % 8) / 32 for j in range(4)] for i in range(32)]
    features, bias = [[0.0, 0.0, 0.0, 0.0]], [(5 * i % 7) / 4 for i in range(32)]
    tensors = [torch.tensor(x) for x in (features, weight, bias)]
    assert tensors[1].tolist() == weight  # meta: nothing was rounded on the way
    for budget in (1, 2**30):
        sums = stream_tokens(*tensors, kappa=True, budget=budget)
        # float32 leaves 1e-7 of the spread around μ
        expected = float(exact.quadratic(bias, weight))
        assert sums.quadratic.tolist() == pytest.approx([expected], rel=1e-6, abs=0)


def test_half_precision_rows_that_nearly_agree_keep_theirs():
    # As above with the 8 bits that bfloat16 has: 4 + {0, …, 7}/32, an offset of 40 times the spread
    weight = torch.tensor([[4.0 + (i * (j + 3) % 8) / 32 for j in range(4)] for i in range(32)])
    bias = torch.tensor([(5 * i % 7) / 4 for i in range(32)])
    args = [t.bfloat16() for t in (torch.zeros(1, 4), weight, bias)]
    assert torch.equal(args[1].float(), weight)  # meta: nothing was rounded on the way
    sums = stream_tokens(*args, kappa=True, budget=1)
    assert_sums(sums, *args, rtol=1e-6, rtol_quadratic=2.0**-8 + 1e-6)


# -- the product with the Hessian --------------------------------------------------------------


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("bias", [True, False])
def test_product_is_that_of_the_kronecker_matrix(bias, budget):
    T, C, d = 6, 37, 3
    features, weight, b = linear_head(T, C, d, bias=bias)
    direction, token_weights = random(C, d, seed=7), random(T, seed=8)  # of either sign
    p = unchunked(features, weight, b)[0].softmax(dim=1)
    A = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    H = sum(
        w * torch.kron(a, torch.outer(x, x))
        for w, a, x in zip(token_weights, A, features, strict=True)
    )
    sums = stream_tokens(features, weight, b, kappa=False, budget=budget)
    found = stream_product(features, weight, b, sums, token_weights, direction, budget=budget)
    expected = (H @ direction.flatten()).reshape(C, d)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)
    # added to what is there, in two parts as from two batches
    total = weight.clone()
    for part in (slice(0, 2), slice(2, T)):
        args = (features[part], weight, b)
        sums = stream_tokens(*args, kappa=False, budget=budget)
        added = stream_product(
            *args, sums, token_weights[part], direction, budget=budget, into=total
        )
        assert added is total
    torch.testing.assert_close(total, weight + expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("margin", MARGINS)
def test_product_of_confident_tokens_keeps_its_digits(margin, dtype):
    # wide enough that a row's product with φ rounds differently in a matrix product and alone
    features, weight = random(5, 96, seed=1, dtype=dtype), 0.02 * random(60, 96, seed=2)
    weight, bias = weight.to(dtype), torch.zeros(60, dtype=dtype)
    bias[20] = margin
    direction, token_weights = random(60, 96, seed=3, dtype=torch.float32), random(5).float()
    sums = stream_tokens(features, weight, bias, kappa=False, budget=1)
    found = stream_product(features, weight, bias, sums, token_weights, direction, budget=1)
    assert found.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
    _, curvature = unchunked(features, weight, bias)
    phi = features.double()
    signal = curvature.apply(phi @ direction.double().T) * token_weights[:, None]
    expected = signal.T @ phi
    # logits of 60 in float32 are off by 4e-6, and so is log Σ e^z; entries may cancel a bit
    rtol = 1e-12 if dtype is torch.float64 else 1e-5
    scale = float(expected.abs().max())
    torch.testing.assert_close(found.double(), expected, rtol=rtol, atol=rtol * scale / 10)
