"""Dense Hessians: rows taken together where that is right, one after another where it is not."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

TOGETHER = 128  # rows: their derivatives are held at once
LOOKS = 3  # products with random vectors that a matrix must agree with
ROUND_OFF = 1e-13  # of the sum of all sizes in a product: a hundred times what float64 loses


def hessian_of(function: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """The second derivatives of a number in a vector, by torch alone.

    Under vmap, which takes rows together, some derivatives of torch are wrong (LayerNorm's in 2.13)
    and others do not exist. So the matrix must give the products that plain second backwards give,
    in random directions, which no wrong entry leaves alone; otherwise each row is computed alone.
    """
    matrix = _together(function, start)
    return torch.autograd.functional.hessian(function, start) if matrix is None else matrix


def _together(function: Callable[[Tensor], Tensor], start: Tensor) -> Tensor | None:
    start = start.detach().requires_grad_()
    try:
        [gradient] = torch.autograd.grad(function(start), start, create_graph=True)
        units = torch.eye(len(start), dtype=start.dtype).split(TOGETHER)
        rows = [_product(gradient, start, some, is_grads_batched=True) for some in units]
    except RuntimeError:  # no rule for vmap, or a function that does not depend on its argument
        return None
    matrix = torch.cat(rows)
    generator = torch.Generator().manual_seed(0)
    for _ in range(LOOKS):
        vector = torch.randn(len(start), generator=generator, dtype=start.dtype)
        apart = (_product(gradient, start, vector) - vector @ matrix).abs()
        if not bool((apart <= ROUND_OFF * (vector.abs() @ matrix.abs()).max()).all()):
            return None
    return matrix


def _product(gradient: Tensor, start: Tensor, vector: Tensor, **how: bool) -> Tensor:
    [product] = torch.autograd.grad(gradient, start, vector, retain_graph=True, **how)
    return product
