"""The exactness certificate: is a layer's Hessian block its Gauss–Newton block?

H = GGN + Σ_c ∂ℓ/∂z_c · ∇²z_c. The second part vanishes where the outputs are piecewise linear in
the layer's weights (ReLU, max pooling, eval-mode BatchNorm, residual sums). That is not assumed
from the kinds of layers: the second directional derivative D²z[v, v] along a random direction v of
the layer's parameters is computed by two nested forward derivatives, and must vanish.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor
from torch.func import jvp

from .._core import Cost
from ..surface import Surface

NUM_SAMPLES = 8  # a random direction misses a curved output with probability 0, a sample may not


@dataclasses.dataclass(frozen=True)
class Certificate:
    """The outcome for one group of parameters: `curvature` is ‖D²z[v,v]‖ / ‖Dz[v]‖."""

    linear: bool
    curvature: float
    reason: str


def certify(surface: Surface, names: list[str], batch: Any, seed: int) -> Certificate:
    """Test one group of parameters together; v is as long as the parameters themselves."""
    generator = torch.Generator().manual_seed(seed)
    start = {name: surface.parameters[name].detach() for name in names}
    direction = {name: _direction(value, generator) for name, value in start.items()}
    outputs = surface.function(batch)

    def along(t: Tensor) -> Tensor:
        return outputs({name: start[name] + t * direction[name] for name in names})

    zero = torch.zeros((), dtype=surface.dtype, device=surface.device)
    one = torch.ones_like(zero)

    def slope(t: Tensor) -> Tensor:
        return jvp(along, (t,), (one,))[1]

    try:
        first, second = jvp(slope, (zero,), (one,))[:2]
    except (RuntimeError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        return Certificate(False, float("nan"), f"its derivative could not be taken: {reason}")
    num_samples = len(first)
    surface.cost += Cost(forwards=4 * num_samples)  # a doubly dual forward carries four numbers
    scale = float(first.detach().norm())
    bend = float(second.detach().norm())
    ratio = bend / scale if scale else (float("inf") if bend else 0.0)
    # Round-off of the two derivatives; curvature below it moves the value by no more than that.
    tolerance = 100 * torch.finfo(first.dtype).eps
    linear = ratio <= tolerance
    reason = "" if linear else f"the outputs bend along it (‖D²z[v,v]‖/‖Dz[v]‖ = {ratio:.2g})"
    return Certificate(linear, ratio, reason)


def certify_parameters(surface: Surface, batch: Any, seed: int = 0) -> dict[str, Certificate]:
    """One certificate a parameter: each layer as a whole, its parameters singly where that fails.

    The trace sees only diagonal blocks, so parameters that are linear one at a time are enough.
    """
    found: dict[str, Certificate] = {}
    for names in surface.layers().values():
        together = certify(surface, names, batch, seed)
        if together.linear or len(names) == 1:
            found |= dict.fromkeys(names, together)
        else:
            found |= {name: certify(surface, [name], batch, seed) for name in names}
    return found


def _direction(value: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
    noise = noise.to(dtype=value.dtype, device=value.device)
    length = value.norm()
    return noise * (torch.where(length > 0, length, torch.ones_like(length)) / noise.norm())
