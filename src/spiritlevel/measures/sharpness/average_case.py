"""The mean rise of the loss under Gaussian noise, to the precision that was asked for."""

from __future__ import annotations

from ...engine.refine import MeanOfDraws, refine
from ...engine.weight_space.perturbed import WeightNoise
from ...engine.weight_space.probes import PILOT
from ...engine.workspace import Workspace

PASSES_A_DRAW = 2  # the noise and its mirror image


def average_rise(workspace: Workspace, *, sigma: float, relative: bool) -> MeanOfDraws:
    """As many draws as it takes."""
    noise = WeightNoise(workspace.perturbed, workspace.draws, relative=relative)
    draws = MeanOfDraws(
        lambda numbers: noise.rises(sigma, numbers), pilot=PILOT, passes_a_draw=PASSES_A_DRAW
    )
    refine(draws, workspace.precision)
    return draws
