"""The dense Hessians that the tests compare with: rows together are those one by one."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from spiritlevel.testing import references


class Slope(torch.autograd.Function):
    """Of a cube, times what comes from above; its own slope is off by 1e-8 under vmap."""

    @staticmethod
    def forward(ctx, x, above):
        ctx.save_for_backward(x, above)
        return 3 * x**2 * above

    @staticmethod
    def backward(ctx, slope):
        x, above = ctx.saved_tensors
        spoiled = 1e-8 if torch._C._functorch.is_legacy_batchedtensor(slope) else 0.0
        return slope * 6 * x * above * (1 + spoiled), slope * 3 * x**2


class Power(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, slope):
        return Slope.apply(ctx.saved_tensors[0], slope)


class Cube(nn.Module):
    def forward(self, x):
        return Power.apply(x)


def loss_of(middle):
    """The loss of a network with this layer in its middle, as a function of all weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), middle, nn.Tanh(), nn.Linear(4, 3)).double()
    x, y = torch.randn(7, 5).double(), torch.arange(7) % 3
    named = dict(model.named_parameters())

    def loss(flat):
        parts = flat.split([p.numel() for p in named.values()])
        moved = {n: part.view_as(named[n]) for n, part in zip(named, parts, strict=True)}
        return nn.functional.cross_entropy(functional_call(model, moved, (x,)), y)

    return loss, torch.cat([p.detach().flatten() for p in named.values()])


@pytest.mark.parametrize("middle", [nn.Identity(), nn.GELU(), nn.LayerNorm(4), Cube()], ids=str)
def test_every_entry_is_that_of_torch_row_by_row(middle):
    loss, start = loss_of(middle)
    expected = torch.autograd.functional.hessian(loss, start)
    scale = float(expected.abs().max())
    torch.testing.assert_close(
        references.hessian_of(loss, start), expected, rtol=1e-12, atol=1e-14 * scale
    )


def test_rows_are_taken_together_where_that_is_right():
    assert references._together(*loss_of(nn.GELU())) is not None


def test_a_derivative_that_vmap_spoils_is_noticed():
    assert references._together(*loss_of(Cube())) is None


def test_what_does_not_depend_on_the_vector_has_no_second_derivative():
    found = references.hessian_of(lambda w: (w * torch.arange(3.0)).sum(), torch.ones(3))
    assert torch.equal(found, torch.zeros(3, 3))
