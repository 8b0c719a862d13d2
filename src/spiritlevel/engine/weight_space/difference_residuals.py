"""Residuals of eigenpairs whose products were differences of gradients.

What Lanczos says of its residuals holds for the products it was given. These are off by something,
and a basis of many vectors collects it. So every vector found is multiplied once more: the residual
is that of this product, and what it may be off is added.
"""

from __future__ import annotations

import dataclasses

import torch

from .chunk_products import Images
from .lanczos import Eigenpairs
from .long_rows import squared_norms
from .products import errors_of


def with_product_errors(
    pairs: Eigenpairs, images: Images, *, residual_rtol: float | None, rtol: float | None
) -> Eigenpairs:
    """The pairs with residuals and errors that hold for the Hessian itself.

    Args:
        images: products with the vectors found.
        residual_rtol: above this times its value a residual is not converged; None: any will do.
        rtol: the same of the errors of the values.
    """
    theta = pairs.values.to(images.rows.device)
    off = images.rows.double() - theta[:, None] * pairs.vectors.double()
    product_errors = errors_of(images).cpu()
    residuals = torch.maximum(squared_norms(off).sqrt().cpu() + product_errors, pairs.residuals)
    errors = pairs.errors + product_errors  # vᵀEv, for products with H + E
    converged = pairs.converged
    for amounts, most in ((residuals, residual_rtol), (errors, rtol)):
        if most is not None:
            converged = converged & (amounts <= most * pairs.values.abs())
    return dataclasses.replace(pairs, residuals=residuals, errors=errors, converged=converged)
