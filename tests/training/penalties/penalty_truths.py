"""Slow truths for the penalties: dense float64 Hessians that can be differentiated once more.

Nothing here uses the library. `plain` is a mean loss made of torch.nn.functional.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian

Params = dict[str, Tensor]
Plain = Callable[[Tensor, Tensor], Tensor]


def split(theta: Tensor, like: Params) -> Params:
    """A flat vector as parameters, in the order of `like`."""
    parts = theta.split([value.numel() for value in like.values()])
    return {name: part.view(like[name].shape) for name, part in zip(like, parts, strict=True)}


def flat(params: Params) -> Tensor:
    return torch.cat([value.flatten() for value in params.values()])


def dense_hessian(
    model: nn.Module, x: Any, y: Tensor, plain: Plain, params: Params, names: Sequence[str]
) -> Tensor:
    """The block of `names` in the Hessian of the mean loss at `params`; differentiable in them."""
    chosen = {name: params[name] for name in names}

    def loss(theta: Tensor) -> Tensor:
        return plain(functional_call(model, params | split(theta, chosen), (x,)), y)

    return hessian(loss)(flat(chosen))


def value_and_gradient(
    quantity: Callable[[Params], Tensor], model: nn.Module
) -> tuple[Tensor, Params]:
    """A function of all parameters and its gradient in each."""
    params = {name: p.detach() for name, p in model.named_parameters()}
    return quantity(params), grad(quantity)(params)


def trace_squared(
    model: nn.Module, x: Any, y: Tensor, plain: Plain, names: Sequence[str] | None = None
) -> tuple[Tensor, Params]:
    """Tr(H²)/B and its gradient."""
    chosen = [name for name, _ in model.named_parameters()] if names is None else names
    return value_and_gradient(
        lambda params: dense_hessian(model, x, y, plain, params, chosen).square().sum() / len(y),
        model,
    )


def gradients_of(value: Tensor, model: nn.Module) -> Params:
    """What the penalty's own graph gives, zeros where it does not reach."""
    params = dict(model.named_parameters())
    found = torch.autograd.grad(value, list(params.values()), materialize_grads=True)
    return dict(zip(params, found, strict=True))


def assert_same(found: tuple[Tensor, Params], truth: tuple[Tensor, Params]) -> None:
    """Values and gradients agree to round-off of float64."""
    torch.testing.assert_close(found[0].detach(), truth[0], rtol=1e-9, atol=1e-14)
    assert found[1].keys() == truth[1].keys()
    size = max(float(g.abs().max()) for g in truth[1].values())
    for name, gradient in truth[1].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-8, atol=1e-10 * size)


@contextlib.contextmanager
def signs_from(module: str, rows: Tensor) -> Iterator[None]:
    """Probes take the rows of a matrix of signs, one after the other, in place of random ones."""
    drawn = 0

    def draw(like: Sequence[Tensor], generator: object) -> list[Tensor]:
        nonlocal drawn
        row = rows[drawn % len(rows)]
        drawn += 1
        parts = row.split([tensor.numel() for tensor in like])
        return [part.view(t.shape).to(t) for part, t in zip(parts, like, strict=True)]

    with mock.patch(f"spiritlevel.training.penalties.{module}.draw_signs", draw):
        yield


def all_signs(size: int) -> Tensor:
    """Every vector of signs, 2^size rows."""
    numbers = torch.arange(2**size)[:, None] >> torch.arange(size)
    return (numbers & 1).double() * 2 - 1


def orthogonal_signs(size: int) -> Tensor:
    """Rows v of signs with mean v v' = I exactly: columns of a Hadamard matrix. Averages over them
    are expectations over random signs of everything quadratic."""
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix[:, :size]


def within_four_errors(samples: Tensor, truth: Tensor) -> bool:
    """Whether the mean over the first dimension is the truth, as far as its noise can tell."""
    error = samples.std(dim=0) / len(samples) ** 0.5
    return bool(((samples.mean(dim=0) - truth).abs() <= 4 * error + 1e-12).all())
