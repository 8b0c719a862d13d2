"""What reproduces the numbers of a call, as it stands in every report."""

from __future__ import annotations

from typing import Any

import torch

from ..model.surface import Surface
from ..model.surroundings import call_settings
from .precision import Precision


def settings_of(
    surface: Surface,
    precision: Precision,
    *,
    num_samples: int,
    seed: int,
    products: str,
    num_outputs: int | None = None,
) -> dict[str, Any]:
    """Loss, layers, data, number types and device, and what was asked for.

    `num_outputs` are not known where nothing is planned.
    """
    return (
        {
            "loss": surface.loss.name,
            "reduction": "mean",
            "layers": list(surface.layers.owned()),
            "num_samples": num_samples,
            **({} if num_outputs is None else {"num_outputs": num_outputs}),
            "seed": seed,
            "dtype": str(surface.numbers.own).removeprefix("torch."),
            "computed_in": str(surface.numbers.computed_in).removeprefix("torch."),
            "device": surface.device.type,
            "tf32": surface.device.type == "cuda" and torch.backends.cudnn.allow_tf32,
            "torch": torch.__version__,
            "processes": surface.processes.size,
        }
        | precision.asked()
        | call_settings()
        | ({} if surface.frozen is None else {"frozen": surface.frozen})
        | ({} if products == "auto" else {"products": products})
    )
