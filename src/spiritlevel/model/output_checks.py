"""Checks of a model's outputs: one row per sample, and only finite numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..ground.errors import NotFinite, SpiritlevelError
from . import batches as _batches
from .batches import BatchLocation


def check_rows(outputs: Tensor, batch: Any, where: BatchLocation) -> None:
    """Refuse outputs that do not have one row per sample."""
    count = _batches.num_samples(batch)
    if outputs.dim() == 0 or len(outputs) != count:
        raise SpiritlevelError(
            "The outputs must hold one row per sample. Got outputs of shape "
            f"{tuple(outputs.shape)} for {count} samples in {where}. Return them with the samples "
            "first and positions after them: (samples, positions, classes), not flattened or "
            "transposed."
        )


def check_targets(targets: Any, where: BatchLocation) -> None:
    """Refuse targets that are not one tensor."""
    if not isinstance(targets, Tensor):
        raise SpiritlevelError(
            f"The targets must be one tensor. Got {type(targets).__name__} in {where}. Pass "
            "forward=lambda model, batch: (outputs, targets) that picks the tensor your loss "
            "needs; several can be stacked into one and taken apart in the loss."
        )


def any_bad(invalid: Tensor, numbers: Iterable[Tensor]) -> Tensor:
    """Whether a target is invalid or a number is not finite, on their device."""
    bad = invalid.any()
    for tensor in numbers:
        # a sum is finite only if all of it is; on a GPU one would have to wait for it
        quick = tensor.device.type == "cpu" and tensor.dtype in (torch.float32, torch.float64)
        if not (quick and math.isfinite(tensor.sum().item())):
            bad = bad | ~torch.isfinite(tensor).all()
    return bad


def refuse_nonfinite(outputs: Tensor, batch: Any, where: BatchLocation) -> None:
    """Raise SpiritlevelError for a sample that is not finite, NotFinite for such outputs."""
    sample = _batches.nonfinite_sample(batch)
    if sample is not None:
        raise SpiritlevelError(
            f"The data of {where} must be finite. Sample {where.start + sample} holds NaN or "
            "infinity. Remove or repair that sample."
        )
    if bool(torch.isfinite(outputs).all()):
        return
    raise NotFinite(
        f"The model's outputs are NaN or infinite in {where} although its data is finite. "
        "Look for an overflow in the model, for example by running it in float32 or float64."
    )


class DeferredFlag:
    """A boolean on the device that is copied to the host without waiting for it.

    Reading it waits only for the work that decides it, not for work queued later.
    """

    def __init__(self, flag: Tensor) -> None:
        """Start the copy."""
        self._flag = flag
        self._arrived: torch.cuda.Event | None = None
        if flag.device.type == "cuda":
            self._flag = torch.empty((), dtype=torch.bool, pin_memory=True)
            self._flag.copy_(flag, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record(torch.cuda.current_stream(flag.device))

    def read(self) -> bool:
        """Wait for the copy, and return the boolean."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return bool(self._flag)
