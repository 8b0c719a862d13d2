"""Kernel density estimates with an isotropic Gaussian kernel, in log space and in float64.

p(z) = 1/n Σ_i (2πh²)^{−m/2} exp(−‖z − c_i‖²/2h²). With the responsibilities r_i(z), each term's
share of the sum at z,

    ∇p/p = Σ_i r_i (c_i − z)/h²        Δp/p = Σ_i r_i ‖z − c_i‖²/h⁴ − m/h²

Pairs of points are processed in blocks, so memory stays bounded for any number of points.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import torch
from torch import Tensor

PAIR_BYTES = 32 << 20  # of one block of distances
SMALLEST, LARGEST, NUM_COARSE, NUM_FINE = 1e-3, 10.0, 25, 33  # bandwidths tried, in units of σ


@dataclasses.dataclass(frozen=True)
class GaussianMixture:
    """Equal Gaussians of one width around the centers, shape (n, m)."""

    centers: Tensor
    bandwidth: float

    def log_density(self, z: Tensor) -> Tensor:
        """The logarithm of p at each row of z.

        >>> one = GaussianMixture(torch.zeros(1, 1).double(), 1.0)
        >>> float(one.log_density(torch.zeros(1, 1).double()).exp() * math.sqrt(2 * math.pi))
        1.0
        """
        parts = [exponents.logsumexp(dim=1) for _, exponents in self._blocks(z)]
        peak = -self.centers.shape[1] * math.log(self.bandwidth * math.sqrt(2 * math.pi))
        return torch.cat(parts) - math.log(len(self.centers)) + peak

    def derivatives(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """∇p/p of shape (rows, m) and Δp/p of shape (rows,)."""
        gradients, laplacians = [], []
        square = self.bandwidth**2
        for rows, exponents in self._blocks(z):
            shares = exponents.softmax(dim=1)
            gradients.append((shares @ self.centers - z[rows]) / square)
            # ‖z − c‖² is −2h² times the exponent
            mean_square = (shares * exponents).sum(dim=1) * (-2 * square)
            laplacians.append(mean_square / square**2 - self.centers.shape[1] / square)
        return torch.cat(gradients), torch.cat(laplacians)

    def weighted_laplacian(self, z: Tensor) -> Tensor:
        """∇²(p(z)‖z‖²)/p(z) = ‖z‖² Δp/p + 4 z·∇p/p + 2m, shape (rows,)."""
        gradient, laplacian = self.derivatives(z)
        inner = (z * gradient).sum(dim=1)
        return z.square().sum(dim=1) * laplacian + 4 * inner + 2 * z.shape[1]

    def _blocks(self, z: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """−‖z − c‖²/2h² for some rows of z and all centers."""
        for rows, squares in squared_distances(z, self.centers):
            yield rows, squares / (-2 * self.bandwidth**2)


def squared_distances(z: Tensor, centers: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """‖z_i − c_j‖² by blocks of rows, shape (rows, n)."""
    middle = centers.mean(dim=0)  # distances far from the origin would lose their digits
    z, centers = z - middle, centers - middle
    norms = centers.square().sum(dim=1)
    size = max(1, PAIR_BYTES // (8 * len(centers)))
    for start in range(0, len(z), size):
        part = z[start : start + size]
        products = part @ centers.T
        squares = part.square().sum(dim=1, keepdim=True) + norms - 2 * products
        yield slice(start, start + len(part)), squares.clamp_min_(0.0)


def leave_one_out(points: Tensor, bandwidths: Tensor) -> Tensor:
    """Mean log-density of each point under the estimate from all others, for each bandwidth."""
    n, m = points.shape
    sums = torch.zeros(len(bandwidths), dtype=torch.float64)
    for rows, squares in squared_distances(points, points):
        diagonal = torch.arange(n)[rows]  # a point's distance to itself does not count
        squares[torch.arange(len(diagonal)), diagonal] = math.inf
        for k, h in enumerate(bandwidths.tolist()):
            sums[k] += (squares / (-2 * h * h)).logsumexp(dim=1).sum()
    peaks = -m * (bandwidths * math.sqrt(2 * math.pi)).log()
    return sums / n + peaks - math.log(n - 1)


def deviation(points: Tensor) -> float:
    """σ: the root of the mean variance of the coordinates."""
    return math.sqrt(float(points.var(dim=0).mean()))


def scott(points: Tensor) -> float:
    """Scott's rule: σ n^{−1/(m+4)}."""
    n, m = points.shape
    return deviation(points) * n ** (-1 / (m + 4))


def silverman(points: Tensor) -> float:
    """Silverman's rule: σ (n(m+2)/4)^{−1/(m+4)}."""
    n, m = points.shape
    return deviation(points) * (n * (m + 2) / 4) ** (-1 / (m + 4))


def most_likely(points: Tensor) -> float | None:
    """The bandwidth with the largest leave-one-out likelihood; None if it has no maximum.

    It has none where many points coincide: then ever smaller bandwidths are more likely. The search
    is on a grid in units of σ, 2 % apart: the likelihood is flat around its maximum, and on a grid
    round-off cannot change the answer.
    """
    unit = deviation(points)
    ends = math.log10(SMALLEST), math.log10(LARGEST)
    coarse = torch.logspace(*ends, NUM_COARSE, dtype=torch.float64)
    best = int(leave_one_out(points, unit * coarse).argmax())
    if best == 0:
        return None
    last = min(best + 1, NUM_COARSE - 1)
    low, high = math.log10(coarse[best - 1]), math.log10(coarse[last])
    fine = torch.logspace(low, high, NUM_FINE, dtype=torch.float64)
    return unit * float(fine[int(leave_one_out(points, unit * fine).argmax())])
