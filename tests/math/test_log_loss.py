"""−log p of the most likely class and its derivatives, against 60 digits of mpmath."""

import mpmath
import pytest
import torch
from torch.func import grad, hessian, jvp, vmap

from spiritlevel.math.log_loss import minus_log_larger, minus_log_largest

GAPS = (0.5, 5.0, 20.0, 36.0, 40.0, 100.0, 300.0)  # 1 − p_top from 0.7 to 1e-130
DIGITS = {torch.float64: 1e-14, torch.float32: 2e-6}


def value(z):
    return minus_log_largest(z)[0].sum()


def softmax_truth(z):
    """Value, gradient and Hessian of one row, in 60 digits."""
    with mpmath.workdps(300):  # 1 − p must keep its digits too
        z = [mpmath.mpf(entry) for entry in z]
        e = [mpmath.exp(entry - max(z)) for entry in z]
        p = [entry / sum(e) for entry in e]
        slopes = [q - (entry == max(z)) for q, entry in zip(p, z, strict=True)]
        second = [[(i == j) * p[i] - p[i] * p[j] for j in range(len(p))] for i in range(len(p))]
        return mpmath.log(sum(e)), slopes, second


def assert_each(found, truth, tolerance):
    for entry, wanted in zip(found.flatten().tolist(), truth, strict=True):
        assert abs(entry - wanted) <= tolerance * abs(wanted)


@pytest.mark.parametrize("dtype", DIGITS, ids=str)
@pytest.mark.parametrize("gap", GAPS)
def test_every_entry_of_value_gradient_and_hessian_has_its_digits(gap, dtype):
    if dtype == torch.float32 and gap > 40:
        pytest.skip("its square is below the smallest float32 number")
    z = torch.tensor([0.0, gap, -1.0, 0.25], dtype=dtype)
    level, slopes, second = softmax_truth(z.tolist())
    assert_each(value(z[None]), [level], DIGITS[dtype])
    assert_each(grad(value)(z[None]), slopes, DIGITS[dtype])
    for unit, row in zip(torch.eye(4, dtype=dtype), second, strict=True):
        leaf = z[None].clone().requires_grad_()
        (slope,) = torch.autograd.grad(value(leaf), leaf, create_graph=True)
        (by_reverse,) = torch.autograd.grad(slope, leaf, unit[None])
        by_forward = jvp(grad(value), (z[None],), (unit[None],))[1]
        assert_each(by_reverse, row, DIGITS[dtype])
        assert_each(by_forward, row, DIGITS[dtype])


@pytest.mark.parametrize("gap", [*GAPS, -5.0, -40.0])
def test_two_classes_are_the_elementwise_form(gap):
    z = torch.tensor([[0.0, gap]], dtype=torch.float64)
    one = torch.tensor(gap, dtype=torch.float64)
    torch.testing.assert_close(minus_log_larger(one), value(z), rtol=1e-14, atol=0)
    for wanted, found in (
        (grad(value)(z)[0, 1], grad(minus_log_larger)(one)),
        (hessian(value)(z)[0, 1, 0, 1], hessian(minus_log_larger)(one)),
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-14, atol=0)


@pytest.mark.parametrize("form", [minus_log_larger, lambda z: minus_log_largest(z)[0]])
def test_derivatives_up_to_the_third_and_forward_ones(form):
    z = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    z.requires_grad_()

    def second(z):
        (slope,) = torch.autograd.grad(form(z).sum(), z, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), z, create_graph=True)[0]

    assert torch.autograd.gradcheck(form, z, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(form, z, check_fwd_over_rev=True)
    assert torch.autograd.gradcheck(second, z)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_samples_side_by_side(dim):
    z = torch.randn(3, 2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for function in (lambda z: minus_log_largest(z)[0], grad(value), grad(minus_log_sum)):
        alone = torch.stack([function(part) for part in z.unbind(dim)])
        torch.testing.assert_close(vmap(function, in_dims=dim)(z), alone, rtol=1e-14, atol=0)


def minus_log_sum(z):
    return minus_log_larger(z).sum()
