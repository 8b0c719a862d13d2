"""Gaussian noise on the inputs."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from spiritlevel.ground.errors import SpiritlevelError, brief


def input_noise(x: Tensor, std: float, generator: torch.Generator) -> Tensor:
    """The inputs with independent Gaussian noise of that standard deviation, not clipped.

    Paper 001 states the *variance* in its section 6 (0.5 is std=0.707) and σ in its Figure 9.
    """
    if not (isinstance(std, int | float) and std >= 0 and math.isfinite(std)):
        raise SpiritlevelError(
            "The 'std' argument of input_noise must be a finite number of at least 0. "
            f"Got {brief(std)}. For a variance v give v ** 0.5."
        )
    if not x.is_floating_point():
        raise SpiritlevelError(
            f"The inputs given to input_noise must be floats. Got {x.dtype}. Token ids have no "
            "noise of this kind; images: x.float() / 255."
        )
    noise = torch.randn(x.shape, generator=generator, device=generator.device, dtype=x.dtype)
    return x + std * noise.to(x.device)
