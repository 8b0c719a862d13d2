"""Devices without float64, such as Apple's GPUs: a network there is measured on the CPU.

Sums over samples, factors of the loss and second looks are in float64, and they are made beside the
numbers that they belong to, all over the library. A device that has no float64 can hold none of
them. So the network moves to the CPU for the time of a call, and back: its parameters stay the
same objects, and their gradients move along. Batches follow the network wherever it is.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import torch
from torch import nn

from ..ground.errors import SpiritlevelError

NO_FLOAT64 = frozenset({"mps"})  # kinds of devices


@contextlib.contextmanager
def on_a_device_with_float64(model: nn.Module) -> Iterator[str]:
    """Move the model to the CPU during the block if it is where there is no float64.

    Yields what was done, for the settings of the result; "" if nothing was.
    """
    places = _devices(model)
    lacking = sorted({place.type for place in places} & NO_FLOAT64)
    if not lacking:
        yield ""
        return
    if len(places) > 1:
        raise SpiritlevelError(
            f"A model on {lacking[0]!r}, which has no float64, must be on that device as a whole, "
            f"so that it can be measured on the CPU. It is on {sorted(map(str, places))}. Move all "
            "of it to one device, or to the CPU: model.to('cpu')."
        )
    (place,) = places
    try:
        _move(model, torch.device("cpu"))
        yield f"the CPU, since {lacking[0]} has no float64"
    finally:
        _move(model, place)


def counting_type(device: torch.device) -> torch.dtype:
    """In which samples and their weights are counted there, while a penalty is computed.

    float32 counts to 16 million one by one, more than there are targets in a batch.
    """
    return torch.float32 if device.type in NO_FLOAT64 else torch.float64


def _devices(model: nn.Module) -> set[torch.device]:
    return {tensor.device for tensor in itertools.chain(model.parameters(), model.buffers())}


def _move(model: nn.Module, device: torch.device) -> None:
    model.to(device)
