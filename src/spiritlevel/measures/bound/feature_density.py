"""The density of the head's features, and what the bounds of the papers ask of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor

from ...engine.head.features import HeadFeatures, head_features
from ...engine.refine import MeanOfDraws, refine
from ...engine.workspace import Workspace
from ...ground.errors import NotApplicable
from ...math import kde
from ..registry import once

PILOT = 8  # draws before the first look
LEAST_POINTS = 256  # of a draw
NOISE_PAIRS = 4  # perturbations ±ξ of each row, for the loss that the density expects


@dataclasses.dataclass(frozen=True)
class Density:
    """A kernel density of the head's features."""

    rows: HeadFeatures
    mixture: kde.GaussianMixture
    how: str  # the bandwidth was found

    @property
    def text(self) -> str:
        """The size of the features and the bandwidth, for the result."""
        left_out = self.rows.num_constant
        constant = f", {left_out} constant ones left out" if left_out else ""
        rows, m = self.rows.features.shape
        return (
            f"density of {rows} points in {m} features{constant}, bandwidth "
            f"{self.mixture.bandwidth:.3g} ({self.how})"
        )


@once
def head_density(workspace: Workspace) -> Density:
    """The density of the features, with the bandwidth that was asked for."""
    rows, asked = head_features(workspace), workspace.options.bandwidth
    if not isinstance(asked, str):  # a factor, as scipy has it
        bandwidth = float(asked) * kde.deviation(rows.features)
        how = f"{asked:g} standard deviations"
        return Density(rows, kde.GaussianMixture(rows.features, bandwidth), how)
    rule = {"likelihood": kde.most_likely, "scott": kde.scott, "silverman": kde.silverman}
    found = rule[asked](rows.features)
    if found is None:
        raise NotApplicable(
            "The option 'bandwidth'='likelihood' needs features that differ from sample to "
            "sample. So many are the same here that the likelihood grows without end as "
            "the bandwidth shrinks. Use bandwidth='scott' or a number, or remove samples "
            "that occur twice."
        )
    return Density(rows, kde.GaussianMixture(rows.features, found), asked)


def representativeness(workspace: Workspace) -> MeanOfDraws:
    """|loss of a held-out half − loss that the other half's density expects|, mean over halves.

    There are `splits` halves at least, and more up to `max_passes` until the mean is as precise as
    asked.

    A perturbation hξ of the features moves the outputs by hWξ. That is drawn as h√(WWᵀ)u with u of
    as many entries as there are outputs: the same in distribution, and it depends neither on how
    the units are numbered nor on how the layers share their scale.
    """
    density = head_density(workspace)
    rows, count = density.rows, len(density.rows.features)
    U, S, _ = torch.linalg.svd(rows.weight, full_matrices=False)
    root = (U * S) @ U.T * density.mixture.bandwidth
    generator = torch.Generator().manual_seed(workspace.seed)

    def gap() -> float:
        order = torch.randperm(count, generator=generator)
        inside, outside = order[: count // 2], order[count // 2 :]
        expected = 0.0
        for _ in range(NOISE_PAIRS):
            u = torch.randn(len(inside), len(root), generator=generator, dtype=torch.float64)
            for shift in (u @ root, -u @ root):
                losses = rows.losses_at(rows.outputs[inside] + shift, inside)
                expected += float(losses.mean()) / (2 * NOISE_PAIRS)
        return abs(float(rows.losses[outside].mean()) - expected)

    return _repeated(gap, workspace, pilot=0, at_least=max(2, workspace.options.splits))


@once
def curvature_integral(workspace: Workspace) -> MeanOfDraws:
    """∫ |∇²(p(z)‖z‖²)| dz by points drawn from p itself.

    A draw takes a point around every sample, or several where there are few samples.
    """
    mixture = head_density(workspace).mixture
    centers = mixture.centers.repeat(-(-LEAST_POINTS // len(mixture.centers)), 1)
    generator = torch.Generator().manual_seed(workspace.seed)

    def mean() -> float:
        noise = torch.randn(centers.shape, generator=generator, dtype=torch.float64)
        return float(mixture.weighted_laplacian(centers + mixture.bandwidth * noise).abs().mean())

    return _repeated(mean, workspace, pilot=PILOT)


def log_inverse_norms(features: Tensor) -> tuple[float, int]:
    """Logarithm of mean ‖φ‖^{−m} over the rows that are not zero, and how many are."""
    squares = features.square().sum(dim=1)
    squares = squares[squares > 0]
    logs = squares.log() * (-features.shape[1] / 2)
    return float(logs.logsumexp(dim=0)) - math.log(len(squares)), len(features) - len(squares)


def _repeated(
    draw: Callable[[], float], workspace: Workspace, *, pilot: int, at_least: int = 0
) -> MeanOfDraws:
    draws = MeanOfDraws(lambda numbers: [draw() for _ in numbers], pilot=pilot)
    if at_least:
        draws.draw(at_least)
    refine(draws, workspace.precision)
    return draws
