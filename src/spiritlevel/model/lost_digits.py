"""Whether the derivatives of a loss drown in rounding, as a user's may in a confident network.

Cross-entropy, sigmoid cross-entropy and squared error are written so that they do not.
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


class LostDigits:
    """What was seen of a loss while it was measured."""

    def __init__(self, loss: Loss, processes: Processes) -> None:
        """Of the data of all processes."""
        self._loss, self._processes = loss, processes
        self._sums: Tensor | None = None  # rounding, and what is rounded

    def see(self, outputs: Tensor, targets: Tensor) -> None:
        """A batch, at the network's own weights."""
        found = self._loss.rounding(outputs, targets)
        if found is not None:
            self._sums = found if self._sums is None else self._sums + found

    def text(self) -> str:
        """What to say of every number made of derivatives; empty if they have their digits."""
        own = None if self._sums is None else self._sums.tolist()
        found = [sums for sums in self._processes.gather(own) if sums is not None]
        rounding, size = (sum(sums[i] for sums in found) for i in (0, 1))
        if rounding <= MOST * size:
            return ""
        share = rounding / size if size else math.inf
        known = f"about {share:.0e} of them" if share < 1 else "all of them"
        return (
            f"the loss {brief(self._loss.name)} is so small that rounding may be {known} in its "
            f"derivatives. {ADVICE}"
        )
