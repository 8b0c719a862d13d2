"""Solutions of homogeneous linear systems, with as many zeros and simple numbers as can be."""

from __future__ import annotations

import torch
from torch import Tensor

ZERO = 1e-6  # entries of a basis are whole numbers or simple fractions: smaller ones are rounding
_NO_EFFECT = 1e-13  # of the largest effect
_TWELFTHS = 12.0  # halves, thirds and quarters are whole in these


def null_space(rows: Tensor, sizes: Tensor, further: Tensor, tolerance: float) -> Tensor:
    """All x with rows·x = 0 and further·x = 0, as rows of an orthonormal basis.

    `sizes` says how large the parts of each entry of the rows are: if they cancel, the entry is 0
    up to rounding of its parts. Unknowns of no size stay 0. Solutions are exact up to the
    tolerance, relative to the size of each equation and each unknown.
    """
    whole = sizes.norm(dim=1, keepdim=True)
    used = whole.flatten() > 0
    rows, sizes = rows[used] / whole[used], sizes[used] / whole[used]
    scale = sizes.norm(dim=0)
    idle = is_idle(sizes)
    scale = torch.where(idle, 1.0, scale)
    fixed = torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device)[idle]
    further = further.to(rows) / scale
    further = further / further.norm(dim=1, keepdim=True)
    system = torch.cat([torch.where(idle, 0.0, rows / scale), further, fixed])
    _, singular, right = torch.linalg.svd(system, full_matrices=False)
    # where everything cancels, even the largest singular value is rounding of parts of size 1
    solutions = right[singular <= tolerance * max(float(singular[0]), 1.0)] / scale
    return torch.linalg.qr(solutions.T).Q.T.contiguous() if len(solutions) else solutions


def is_idle(sizes: Tensor) -> Tensor:
    """Which unknowns have no effect on anything, up to rounding."""
    largest = sizes.amax(dim=0)
    return largest <= _NO_EFFECT * largest.max()


def echelon(basis: Tensor, order: list[int]) -> Tensor:
    """Another basis: each vector has a 1 where all others have a 0, if possible early in order."""
    basis, done = basis.clone(), 0
    for column in order:
        if done == len(basis):
            break
        best = done + int(basis[done:, column].abs().argmax())
        if float(basis[best, column].abs()) < ZERO:
            continue
        basis[[done, best]] = basis[[best, done]]
        basis[done] /= basis[done, column].clone()
        others = torch.arange(len(basis), device=basis.device) != done
        basis[others] -= basis[others, column, None] * basis[done]
        done += 1
    return basis[:done]


def rounded(vectors: Tensor) -> Tensor:
    """Twelfths where they are as near as rounding explains; other numbers stay."""
    simple = (vectors * _TWELFTHS).round() / _TWELFTHS
    return torch.where((vectors - simple).abs() <= ZERO, simple, vectors)
