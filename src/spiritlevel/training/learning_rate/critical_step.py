"""How long a step may be along the update that an optimizer made, before the loss rises.

The critical learning rate η_c is the one at which the last update would have left the loss where it
was, and 2/η_c is the critical sharpness. On a quadratic loss with gradient g and update −ηu it is
uᵀHu / gᵀu; for gradient descent, gᵀHg / gᵀg, which is at most λ_max. It takes forwards only, and
knows nothing about the optimizer. Kalra and Barkeshli, "Why warmup the learning rate?", 2024.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ...engine.weight_space.perturbed import OVERFLOW
from ...measures.setup import Setup
from ...measures.verb import measuring
from ...model.running_statistics import batch_statistics
from ...records.measurements import Cost

Outcome = Literal["found", "uphill", "no rise", "no update", "nonfinite"]
LONGEST, SHORTEST = 2.0**20, 2.0**-20  # multiples of the update that are tried
CLOSE = 2.0**0.125  # quotient of the two bounds at which a parabola takes over


@dataclasses.dataclass(frozen=True)
class CriticalStep:
    """The multiple of the last update at which the loss is what it was before it."""

    outcome: Outcome
    multiple: float  # nan where there is none
    cost: Cost


@measuring()
def critical_step(
    setup: Setup,
    model: nn.Module,
    data: Iterable[Any],
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
    *,
    by_batch: Collection[nn.Module] = (),
    guess: float = 1.0,
) -> CriticalStep:
    """Search along the line from the weights `before` through those `after` the update.

    Args:
        before, after: by parameter name; parameters that are left out stay as they are.
        by_batch: layers that normalize by the statistics of each batch, which is not divided.
        guess: the multiple to begin with, such as that of an earlier update.

    >>> net = nn.Linear(2, 1, bias=False).double()
    >>> x, y = torch.diag(torch.tensor([1.0, 2.0])).double(), torch.zeros(2, 1).double()
    >>> w = torch.tensor([[1.0, 1.0]]).double()       # H = diag(1, 4), so g = (1, 4)
    >>> step = {"weight": w - 0.1 * torch.tensor([[1.0, 4.0]]).double()}
    >>> found = critical_step(Setup("mse"), net, (x, y), {"weight": w}, step)
    >>> round(2 / (0.1 * found.multiple), 9)          # gᵀHg / gᵀg = 65/17
    3.823529412
    """
    with setup.whole().opened(model, data) as workspace:
        perturbed = workspace.perturbed
        if by_batch:
            perturbed.chunk = workspace.num_samples
        if all(torch.equal(before[name], after[name]) for name in before):
            return CriticalStep("no update", math.nan, workspace.cost)

        def loss_at(multiple: float) -> float:
            return perturbed.losses([_between(before, after, multiple)])[0]

        with batch_statistics(by_batch):
            start = loss_at(0.0)
            if not start < OVERFLOW:
                return CriticalStep("nonfinite", math.nan, workspace.cost)
            outcome, multiple = _search(loss_at, start, perturbed.round_off(start), guess)
    return CriticalStep(outcome, multiple, workspace.cost)


def _between(
    before: Mapping[str, Tensor], after: Mapping[str, Tensor], multiple: float
) -> dict[str, Tensor]:
    """The weights at a multiple of the update, computed in at least float32."""
    points = {}
    for name, start in before.items():
        wide = torch.promote_types(start.dtype, torch.float32)
        step = after[name].detach().to(wide) - start.to(wide)
        points[name] = (start.to(wide) + multiple * step).to(start.dtype)
    return points


def _search(
    loss_at: Callable[[float], float], start: float, round_off: float, guess: float
) -> tuple[Outcome, float]:
    """Double or halve until the loss rises on one side only, then close in.

    A step so short that rounding hides the rise has not left the loss lower: a fall must be seen.
    """

    def risen(value: float) -> bool:
        return value > start + round_off

    def fallen(value: float) -> bool:
        return value < start - round_off

    at = min(max(guess, SHORTEST), LONGEST)
    value = loss_at(at)
    factor = 0.5 if risen(value) else 2.0
    while True:
        following = at * factor
        if not SHORTEST <= following <= LONGEST:
            return ("uphill", 0.0) if factor < 1 else ("no rise", LONGEST)
        next_value = loss_at(following)
        if risen(next_value) != risen(value):
            break
        at, value = following, next_value
    (low, below), (high, above) = sorted([(at, value), (following, next_value)])
    if not fallen(below) and not fallen(loss_at(low / 2)):
        return "uphill", 0.0
    while high / low > CLOSE:
        middle = math.sqrt(low * high)
        height = loss_at(middle)
        if risen(height):
            high, above = middle, height
        else:
            low, below = middle, height
    return "found", _crossing(low, below - start, high, above - start)


def _crossing(low: float, below: float, high: float, above: float) -> float:
    """Where the parabola through 0 and two rises, one above 0 and one not, is 0 again.

    >>> _crossing(1.0, -1.0, 3.0, 3.0)       # α² − 2α
    2.0
    """
    bend = (above / high - below / low) / (high - low)
    slope = below / low - bend * low
    root = -slope / bend if bend > 0 else high
    return min(max(root, low), high)
