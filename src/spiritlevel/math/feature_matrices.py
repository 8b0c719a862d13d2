"""Random feature matrices ρA: A uniform over all orthogonal matrices, ρ a length under a kernel."""

from __future__ import annotations

import torch
from torch import Tensor

SPHERE, BALL = "sphere", "ball"
KERNELS = (SPHERE, BALL)
POINTS = 20_001  # of a grid for a normal kernel: its errors are below a millionth
NEGLIGIBLE = 60.0  # in the logarithm of a density


class Radius:
    """The length of a vector in `dimension` dimensions under a kernel, at most 1.

    "sphere" has all of it at 1, "ball" is uniform in the ball, and a number is the standard
    deviation of an isotropic normal that is cut off at 1.

    >>> Radius("ball", 2).mean_square
    0.5
    """

    def __init__(self, kernel: str | float, dimension: int) -> None:
        self.kernel, self.dimension = kernel, dimension
        self._places = self._shares = torch.empty(0)
        self.mean_square = 1.0
        if kernel == BALL:
            self.mean_square = dimension / (dimension + 2)
        elif not isinstance(kernel, str):
            self._prepare(kernel)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Lengths in float64, on the CPU; the sphere takes nothing from the generator."""
        if self.kernel == SPHERE:
            return torch.ones(count, dtype=torch.float64)
        uniform = torch.rand(count, generator=generator, dtype=torch.float64)
        if self.kernel == BALL:
            return uniform ** (1 / self.dimension)
        after = torch.searchsorted(self._shares, uniform).clamp(1, POINTS - 1)
        low, high = self._shares[after - 1], self._shares[after]
        between = (uniform - low) / (high - low).clamp_min(torch.finfo(torch.float64).tiny)
        return self._places[after - 1].lerp(self._places[after], between)

    def _prepare(self, deviation: float) -> None:
        """The distribution of ρ, whose density is in proportion to ρ^(m−1) exp(−ρ²/(2σ²))."""
        low, high = 0.0, 1.0
        while True:
            places = torch.linspace(low, high, POINTS, dtype=torch.float64)
            logs = torch.xlogy(self.dimension - 1.0, places) - (places / deviation).square() / 2
            seen = (logs >= logs.max() - NEGLIGIBLE).nonzero().flatten()
            first, last = max(int(seen[0]) - 1, 0), min(int(seen[-1]) + 1, POINTS - 1)
            if last - first > POINTS // 2:
                break
            low, high = float(places[first]), float(places[last])
        density = (logs - logs.max()).exp()
        sums = torch.cumulative_trapezoid(density, places)
        self._places, self._shares = places, torch.cat([sums.new_zeros(1), sums]) / sums[-1]
        self.mean_square = float(torch.trapezoid(density * places**2, places) / sums[-1])


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
