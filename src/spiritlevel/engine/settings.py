"""What a result says about how it came about: all that is known of a surface."""

from __future__ import annotations

from typing import Any

import torch

from ..model.surface import Surface


def settings_of(surface: Surface, seed: int, num_samples: int) -> dict[str, Any]:
    """Loss, layers, data, number types and device."""
    return {
        "loss": surface.loss.name,
        "reduction": "mean",
        "layers": list(surface.layers.owned()),
        "num_samples": num_samples,
        "seed": seed,
        "dtype": str(surface.numbers.own).removeprefix("torch."),
        "computed_in": str(surface.numbers.computed_in).removeprefix("torch."),
        "device": surface.device.type,
        "tf32": surface.device.type == "cuda" and torch.backends.cudnn.allow_tf32,
        "torch": torch.__version__,
        "processes": surface.processes.size,
    }
