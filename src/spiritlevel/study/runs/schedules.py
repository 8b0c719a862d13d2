"""How the learning rate goes during training: a factor for every step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def follows(training: Mapping[str, Any]) -> bool:
    """Whether the rate changes at all."""
    return "schedule" in training or "warmup" in training


def rate_factor(training: Mapping[str, Any], *, step: int, steps: int) -> float:
    """What the rate is multiplied by at `step` (from 0), with `steps` to an epoch.

    During the warmup it rises in equal parts up to 1, whatever comes after. A cosine falls to 0
    over the rest; "step" multiplies by gamma at each milestone: below 1 a share of all epochs, else
    an epoch that has been completed.

    >>> half = {"epochs": 4, "schedule": "step", "milestones": [0.5], "gamma": 0.1}
    >>> [rate_factor(half, step=step, steps=2) for step in (0, 3, 4, 7)]
    [1.0, 1.0, 0.1, 0.1]
    """
    epochs, warmup = training["epochs"], training.get("warmup", 0)
    if step < warmup * steps:
        return (step + 1) / (warmup * steps)
    done = step / steps  # epochs
    kind = training.get("schedule", "constant")
    if kind == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * (done - warmup) / (epochs - warmup)))
    if kind == "step":
        places = (m if m >= 1 else m * epochs for m in training["milestones"])
        return float(training["gamma"] ** sum(done >= place for place in places))
    return 1.0
