"""The names that a case's program may use."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from fuzz.parts import (
    attention,
    criteria,
    ends,
    functions,
    layers,
    packing,
    routing,
    sharing,
    wiring,
)

MODULES = (attention, criteria, ends, functions, layers, packing, routing, sharing, wiring)


def names_for_setup() -> dict[str, Any]:
    """torch, and every part."""
    names: dict[str, Any] = {"torch": torch, "nn": nn, "F": F}
    for module in MODULES:
        names |= {
            name: value
            for name, value in vars(module).items()
            if getattr(value, "__module__", None) == module.__name__
        }
    return names
