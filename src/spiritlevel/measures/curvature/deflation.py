"""The part of Tr(H²) that is known from products with a basis; probes only estimate the rest.

With orthonormal rows Q and P = 1 − QᵀQ, the squares of H, block by block, are

    Tr H² = 2‖HQᵀ‖² − ‖QHQᵀ‖² + Tr (PHP)²

and only the last term takes probes: E‖PHPz‖². Any basis is allowed, and one of the dominant
directions leaves little: they are in the images of random vectors, and in what Lanczos has built.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ...engine.weight_space.lanczos import Subspace
from ...engine.weight_space.long_rows import columns, inner, orthonormal, outside, squared_norms


class Deflation:
    """A basis Q, and the part of Tr(H²) that it accounts for."""

    def __init__(self, basis: Tensor, value: float) -> None:
        """`value` is that part: 2‖HQᵀ‖² − ‖QHQᵀ‖²."""
        self.basis, self.value = basis, value

    def probes(self, signs: Tensor) -> Tensor:
        """Pz, to be multiplied by H instead of z."""
        return outside(signs, self.basis)

    def squares(self, images: Tensor) -> Tensor:
        """‖PHPz‖² for each row HPz of `images`."""
        return squared_norms(outside(images, self.basis))


class LanczosDeflation(Deflation):
    """From a Lanczos run: HQᵀ = QᵀT + RᵀC, so that no further product is needed."""

    def __init__(self, subspace: Subspace) -> None:
        """`known` is read for as long as there are probes."""
        C = subspace.coupling
        super().__init__(subspace.basis, float(subspace.T.square().sum() + 2 * C.square().sum()))
        self._beyond, self._coupling = subspace.beyond, C

    def squares_of_plain(self, signs: Tensor, images: Tensor) -> Tensor:
        """‖PHPz‖² from Hz itself: PHPz = PHz − RᵀCQz."""
        along = inner(signs, self.basis) @ self._coupling.T.to(signs.device)
        rest = outside(images, self.basis).double()
        for part in columns(len(rest) + len(self._beyond), rest):
            rest[:, part] -= along @ self._beyond[:, part].double()
        return squared_norms(rest)


def sketched(images: Tensor, multiply: Callable[[Tensor], Tensor]) -> Deflation:
    """From H times random rows, which are overwritten, and as many products again."""
    basis = orthonormal(images)
    products = multiply(basis)
    whole, inside = inner(products, products).trace(), inner(products, basis).square().sum()
    return Deflation(basis, float(2 * whole - inside))
