"""Whether derivatives drown in rounding.

Those of a user's loss may in a confident network; cross-entropy, sigmoid cross-entropy and squared
error are written so that they do not. Those of tanh or a sigmoid do where it is saturated.
"""

from __future__ import annotations

import math

from torch import Tensor

from ..ground.errors import brief
from .distributed import Processes
from .losses import Loss

MOST = 1e-4  # of the second derivatives: with more, a number has less than four digits
ADVICE = (
    "If it is a cross-entropy, pass loss='cross_entropy' or 'bce', or torch's module, with the "
    "network's outputs before its softmax or sigmoid; these lose no digits. Or measure in float64"
)


LOSS = -1  # sites are numbered from 0
SATURATED = "a function of single elements is so saturated"
IN_FLOAT64 = "Measure in float64, if this is not"


class LostDigits:
    """What was seen of a loss, and of elementwise functions, while they were measured."""

    def __init__(self, loss: Loss, processes: Processes) -> None:
        """Of the data of all processes."""
        self._loss, self._processes = loss, processes
        # rounding, and what is rounded: of the loss, or by site of the functions
        self._sums: dict[int, Tensor] = {}

    def see(self, outputs: Tensor, targets: Tensor) -> None:
        """A batch, at the network's own weights."""
        found = self._loss.rounding(outputs, targets)
        if found is not None:
            self._add(LOSS, found)

    def see_bends(self, site: int, found: Tensor) -> None:
        """The functions of one site in a batch, by what is rounding and what is rounded."""
        self._add(site, found)

    def _add(self, key: int, found: Tensor) -> None:
        self._sums[key] = self._sums[key] + found if key in self._sums else found

    def text(self) -> str:
        """What to say of every number made of derivatives; empty if they have their digits."""
        sums: dict[int, list[float]] = {}
        for mine in self._processes.gather({k: each.tolist() for k, each in self._sums.items()}):
            for key, (rounding, size) in mine.items():
                before = sums.get(key, [0.0, 0.0])
                sums[key] = [before[0] + rounding, before[1] + size]
        shares = {
            key: rounding / size if size else math.inf
            for key, (rounding, size) in sums.items()
            if rounding > MOST * size
        }
        if not shares:
            return ""
        worst = LOSS if LOSS in shares else max(shares, key=shares.__getitem__)
        known = f"about {shares[worst]:.0e} of them" if shares[worst] < 1 else "all of them"
        of_loss = worst == LOSS
        cause = f"the loss {brief(self._loss.name)} is so small" if of_loss else SATURATED
        advice = ADVICE if of_loss else IN_FLOAT64
        return f"{cause} that rounding may be {known} in its derivatives. {advice}"
