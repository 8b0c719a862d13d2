"""Random orthogonal matrices, uniform over all orthogonal matrices."""

from __future__ import annotations

import torch
from torch import Tensor


def haar_rows(count: int, size: int, generator: torch.Generator) -> Tensor:
    """The first `count` rows of a size × size orthogonal matrix, uniform over all of them.

    QR of a normal matrix, with the signs that make the factorization unique: without them the
    result would depend on the signs that the QR routine happens to choose (Mezzadri 2007). Drawn in
    float64 on the CPU, so that a seed gives the same matrix on every device.

    >>> rows = haar_rows(2, 5, torch.Generator().manual_seed(0))
    >>> torch.allclose(rows @ rows.T, torch.eye(2).double())
    True
    """
    normal = torch.randn(size, count, generator=generator, dtype=torch.float64)
    Q, _ = unique_qr(normal)
    return Q.mT


def unique_qr(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Reduced QR whose R has no negative entry on its diagonal."""
    Q, R = torch.linalg.qr(matrix)
    diagonal = R.diagonal(dim1=-2, dim2=-1)
    signs = torch.where(diagonal < 0, -1.0, 1.0).to(R)
    return Q * signs[..., None, :], signs[..., :, None] * R
