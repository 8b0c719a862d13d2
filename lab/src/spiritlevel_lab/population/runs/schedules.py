"""The learning rate during training, as a factor for every step."""

from __future__ import annotations

import math

from ..settings.training import TrainingSettings


def follows(training: TrainingSettings) -> bool:
    """Whether the rate changes at all."""
    return training.schedule != "constant" or training.warmup > 0


def rate_factor(training: TrainingSettings, *, step: int, steps: int) -> float:
    """What the rate is multiplied by at `step` (from 0), with `steps` to an epoch.

    During the warmup it rises in equal parts up to 1, whatever comes after. A cosine falls to 0
    over the rest; "step" multiplies by gamma at each milestone: below 1 a share of all epochs, else
    an epoch that has been completed.

    >>> half = TrainingSettings(epochs=4, schedule="step", milestones=(0.5,), gamma=0.1)
    >>> [rate_factor(half, step=step, steps=2) for step in (0, 3, 4, 7)]
    [1.0, 1.0, 0.1, 0.1]
    """
    epochs, warmup = training.epochs, training.warmup
    if step < warmup * steps:
        return (step + 1) / (warmup * steps)
    done = step / steps  # epochs
    if training.schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * (done - warmup) / (epochs - warmup)))
    if training.schedule == "step":
        places = (m if m >= 1 else m * epochs for m in training.milestones)
        return float(training.gamma ** sum(done >= place for place in places))
    return 1.0
