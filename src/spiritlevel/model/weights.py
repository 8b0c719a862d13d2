"""Weights that must not change while they are measured, and must be the same in all processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..ground.errors import SpiritlevelError
from .bit_hashes import hash_equals
from .distributed import Processes, unwrapped

SMALL = 1 << 16  # numbers of a tensor that is copied to be hashed beside others


@contextlib.contextmanager
def fixed_weights(model: nn.Module, processes: Processes) -> Iterator[None]:
    """Raise SpiritlevelError if the block, or anybody else meanwhile, changes the weights.

    Refuses processes that start with different weights or buffers.
    """
    plain = unwrapped(model)
    before = hash_weights(plain)
    with _same_in_all(model, before, processes):
        yield
    for name, value in hash_weights(plain).items():
        if before.get(name) != value:
            raise SpiritlevelError(
                f"The weights must not change while they are measured. {name!r} has changed. Look "
                "for an optimizer step in a callback, another thread that trains the model, or a "
                "forward that writes to its parameters. Measure copy.deepcopy(model) instead."
            )


def hash_weights(model: nn.Module) -> dict[str, int]:
    """A hash of every parameter and buffer, by name."""
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    alike: dict[Any, list[tuple[str, Tensor]]] = {}  # small ones are hashed together
    for name, tensor in tensors.items():
        _check_readable(name, tensor)
        for part in _plain_parts(tensor):
            kind = part.device, part.dtype, part.layout, part.shape
            key = kind if part.numel() <= SMALL and not part.is_nested else (name, *kind)
            alike.setdefault(key, []).append((name, part))
    hashed = [
        ([name for name, _ in group], hash_equals([t for _, t in group]))
        for group in alike.values()
    ]
    values = dict.fromkeys(tensors, 0)
    for device in {hashes.device for _, hashes in hashed}:  # one transfer from each device
        here = [(names, hashes) for names, hashes in hashed if hashes.device == device]
        read = torch.cat([hashes for _, hashes in here]).tolist()
        for name, value in zip([name for names, _ in here for name in names], read, strict=True):
            values[name] += value
    return values


def _check_readable(name: str, tensor: Tensor) -> None:
    if nn.parameter.is_lazy(tensor):
        reason, advice = "is not initialized yet", "Run the model once on a batch first."
    elif tensor.is_meta:
        reason, advice = "is on the meta device and has no values", "Load the weights first."
    elif tensor.is_inference():
        reason = "was made under torch.inference_mode, so nothing can be differentiated by it"
        advice = "Make or load the model outside of it."
    else:
        return
    raise SpiritlevelError(f"The model must have weights to measure. {name!r} {reason}. {advice}")


def _plain_parts(tensor: Tensor) -> list[Tensor]:
    """The tensor, or those that it is made of (quantized weights wrap several)."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return [tensor]
    names, _ = flatten()
    inside = [getattr(tensor, name) for name in names]  # a DTensor has its mesh there, too
    return [part for each in inside if isinstance(each, Tensor) for part in _plain_parts(each)]


@contextlib.contextmanager
def _same_in_all(
    model: nn.Module, hashes: Mapping[str, int], processes: Processes
) -> Iterator[None]:
    """Refuse weights that differ; buffers are those of process 0 where DDP would send them."""
    differing = dict(processes.differing(hashes))
    buffers = dict(unwrapped(model).named_buffers())
    sent = isinstance(model, nn.parallel.DistributedDataParallel) and model.broadcast_buffers
    for name in differing:
        if name not in buffers:
            raise SpiritlevelError(
                f"All processes must have the same weights. {name!r} differs. Send those of one "
                "process to all with torch.distributed.broadcast, or pass distributed=False to "
                "measure in each process alone."
            )
        if not sent:
            raise SpiritlevelError(
                f"All processes must have the same buffers. {name!r} differs. Send those of one "
                "process to all with torch.distributed.broadcast, use SyncBatchNorm, or pass "
                "distributed=False to measure in each process alone."
            )
    if not differing:
        yield
        return
    mine = {name: buffers[name].detach().clone() for name in differing}
    on_host = {name: value.cpu() for name, value in mine.items()}
    of_first = processes.gather(on_host if processes.rank == 0 else None)[0]
    with torch.no_grad():
        for name, value in of_first.items():
            buffers[name].copy_(value)
        try:
            yield
        finally:
            for name, value in mine.items():
                buffers[name].copy_(value)
