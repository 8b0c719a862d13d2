"""Checks of what came out of a model: one row per sample, valid targets, finite numbers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..ground.errors import NotFinite, SpiritlevelError
from . import batches as _batches
from .batches import BatchLocation
from .losses import Loss, as_mask


class OutputChecks:
    """The checks of one batch after the other; on a GPU values are looked at one batch later."""

    def __init__(self, loss: Loss) -> None:
        """`loss` says which targets are valid."""
        self._loss = loss
        self._unread: _Unread | None = None

    def counted(
        self,
        outputs: Tensor,
        targets: Any,
        mask: Tensor | None,
        finite: Tensor,
        batch: Any,
        where: BatchLocation,
    ) -> Tensor:
        """The targets, marked where they do not count; `finite` must be finite, as the batch."""
        check_targets(targets, where)
        if not targets.is_floating_point():
            targets = targets.long()  # in eight bits −100 would be another number
        check_rows(outputs, batch, where)
        self._loss.check(outputs, targets, where=str(where))
        invalid, counted = self._loss.invalid(outputs, targets), targets
        numbers = [finite]
        if mask is None:
            numbers += [tensor for tensor in _batches.tensors(batch) if tensor.is_floating_point()]
        else:  # what a mask hides need not be valid
            counted = self._loss.apply_mask(targets, mask, where=str(where))
            shown = as_mask(mask, targets.shape)
            assert shown is not None  # or `apply_mask` would have refused it
            invalid = invalid & shown
        flag = DeferredFlag(any_bad(invalid, numbers))
        self._unread = _Unread(flag, finite, outputs, counted, batch, where, mask is not None)
        if outputs.device.type == "cpu":
            self.read()
        return counted

    def read(self) -> None:
        """Raise SpiritlevelError if the values of the last batch cannot be measured."""
        last, self._unread = self._unread, None
        if last is not None and last.bad.read():
            if not last.masked or not bool(torch.isfinite(last.finite).all()):
                refuse_nonfinite(last.finite, last.batch, last.where)
            self._loss.refuse_invalid(last.outputs, last.targets, where=str(last.where))


def check_rows(outputs: Tensor, batch: Any, where: BatchLocation) -> None:
    """Refuse complex outputs, and those that do not have one row per sample."""
    if outputs.is_complex():
        raise SpiritlevelError(
            f"The outputs must be real. Got {outputs.dtype} in {where}. Let the model return what "
            "the loss is a function of, such as outputs.abs() or torch.view_as_real(outputs), or "
            "do so in forward=lambda model, batch: (outputs, targets)."
        )
    count = _batches.num_samples(batch)
    if outputs.dim() == 0 or len(outputs) != count:
        raise SpiritlevelError(
            "The outputs must hold one row per sample. Got outputs of shape "
            f"{tuple(outputs.shape)} for {count} samples in {where}. Return them with the samples "
            "first and positions after them: (samples, positions, classes), not flattened or "
            "transposed."
        )


def check_targets(targets: Any, where: BatchLocation) -> None:
    """Refuse targets that are not one tensor of real numbers."""
    if not isinstance(targets, Tensor):
        raise SpiritlevelError(
            f"The targets must be one tensor. Got {type(targets).__name__} in {where}. Pass "
            "forward=lambda model, batch: (outputs, targets) that picks the tensor your loss "
            "needs; several can be stacked into one and taken apart in the loss."
        )
    if targets.is_complex():
        raise SpiritlevelError(
            f"The targets must be real. Got {targets.dtype} in {where}. Pass "
            "torch.view_as_real(targets), and outputs of the same shape."
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


@dataclasses.dataclass(frozen=True)
class _Unread:
    """A batch that went through the model, and the flag about its values."""

    bad: DeferredFlag
    finite: Tensor
    outputs: Tensor
    targets: Tensor
    batch: Any
    where: BatchLocation
    masked: bool


def refuse_unless_counted(counted: bool) -> None:
    """Refuse data of which no target has a weight in the loss."""
    if not counted:
        raise SpiritlevelError(
            "The data must hold at least one target that counts. All samples are ignored, "
            "masked or have class weight 0. Check ignore_index, the mask and the labels."
        )
