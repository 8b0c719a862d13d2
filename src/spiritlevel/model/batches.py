"""Batches as users pass them: pairs, dicts, nested containers of tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ..errors import SpiritlevelError
from .samples import holds_samples, in_batches

# (model, batch) -> (outputs, targets) or (outputs, targets, mask)
Forward = Callable[[nn.Module, Any], tuple[Tensor, ...]]
TARGET_KEYS = ("labels", "label", "targets", "target", "y")


@dataclasses.dataclass(frozen=True)
class BatchLocation:
    """Where a batch, or a part of one, lies in the data; errors name it."""

    batch: int
    start: int = 0  # its first sample, counted within the batch
    first: int = 0  # its first sample, counted over all data of this process

    def __str__(self) -> str:
        return f"batch {self.batch}"


def map_tensors(function: Callable[[Tensor], Tensor], batch: Any) -> Any:
    """Apply a function to every tensor of a nested batch; everything else is left as it is."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        return {key: map_tensors(function, value) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        values = [map_tensors(function, value) for value in batch]
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)
    return batch


def form_of(batch: Any) -> Hashable:
    """Type, shape and memory format of a batch's tensors, however many samples it has."""
    return tuple((t.dtype, t.shape[1:], t.stride()[1:]) for t in tensors(batch))


def tensors(batch: Any) -> list[Tensor]:
    """Every tensor of a nested batch, in order."""
    if isinstance(batch, Tensor):
        return [batch]
    if isinstance(batch, Mapping):
        batch = batch.values()
    elif not isinstance(batch, list | tuple):
        return []
    return [tensor for part in batch for tensor in tensors(part)]


def rebuild(batch: Any, leaves: Iterable[Tensor]) -> Any:
    """A batch with the same nesting and other tensors, in the order of `tensors`."""
    remaining = iter(leaves)
    return map_tensors(lambda _: next(remaining), batch)


def num_samples(batch: Any) -> int:
    """The length of the first tensor that has at least one dimension.

    >>> num_samples((torch.zeros(5, 3), torch.zeros(5)))
    5
    """
    for tensor in tensors(batch):
        if tensor.dim():
            return len(tensor)
    raise SpiritlevelError(
        "A batch must contain at least one tensor with a sample dimension. Got "
        f"{type(batch).__name__} without any. Yield (x, y) tensors or a dict of tensors."
    )


def take(batch: Any, index: Tensor | slice) -> Any:
    """The chosen samples; tensors without a sample dimension are left as they are."""
    size = num_samples(batch)
    return map_tensors(lambda t: t[index] if t.dim() and len(t) == size else t, batch)


def telling_samples(batch: Any, count: int) -> list[int]:
    """The `count` samples that show most: with few zeros, and no two alike.

    If there are not enough samples, some are taken again.

    >>> telling_samples((torch.tensor([[0.0, 0.0], [1.0, 2.0], [1.0, 2.0], [3.0, 0.0]]),), 2)
    [1, 3]
    """
    size = num_samples(batch)
    rows = [t.reshape(size, -1) for t in tensors(batch) if t.dim() and len(t) == size]
    full = torch.stack([(row != 0).sum(dim=1) for row in rows]).sum(dim=0)
    order = torch.argsort(full, descending=True, stable=True).tolist()
    distinct: list[int] = []
    for i in order:
        if not any(all(torch.equal(row[i], row[j]) for row in rows) for j in distinct):
            distinct.append(i)
        if len(distinct) == count:
            break
    others = [i for i in order if i not in distinct]
    chosen = (distinct + others)[:count]
    return [sorted(chosen)[i % len(chosen)] for i in range(count)]


def join(left: Any, right: Any) -> Any | None:
    """Two batches as one, or None if their samples differ in shape."""
    sizes = num_samples(left), num_samples(right)
    pairs = list(zip(tensors(left), tensors(right), strict=True))
    parts = []
    for a, b in pairs:
        per_sample = a.dim() > 0 and b.dim() > 0 and (len(a), len(b)) == sizes
        if per_sample and a.shape[1:] != b.shape[1:]:
            return None
        parts.append(torch.cat([a, b]) if per_sample else a)
    return rebuild(left, parts)


def nonfinite_sample(batch: Any) -> int | None:
    """The first sample of a batch that holds a NaN or an infinity, or None."""
    for tensor in tensors(batch):
        if tensor.is_floating_point() and tensor.dim():
            bad = ~torch.isfinite(tensor.reshape(len(tensor), -1)).all(dim=1)
            if bool(bad.any()):
                return int(bad.nonzero()[0])
    return None


def as_batches(data: Any) -> Iterable[Any]:
    """The batches of what a user passes as data: a loader, one batch, or single samples."""
    if isinstance(data, tuple) and len(data) == 2 and all(isinstance(t, Tensor) for t in data):
        return [data]
    if isinstance(data, Mapping):  # one batch, as a tokenizer makes it
        return [data]
    if holds_samples(data):
        return in_batches(data)
    if not isinstance(data, Iterable) or isinstance(data, Tensor):
        raise SpiritlevelError(
            "The data must be a loader of (x, y) batches, a pair of tensors (x, y), a dict with "
            f"labels, or a data set. Got {type(data).__name__}. For tensors pass (x, y)."
        )
    if isinstance(data, Iterator):
        raise SpiritlevelError(
            "The data must be iterable more than once. Got a one-shot iterator "
            f"({type(data).__name__}). Pass the DataLoader itself, or list(iterator)."
        )
    return data


def total_samples(data: Iterable[Any]) -> int | None:
    """How many samples a pass over the data reads, or None if only reading can tell."""
    if isinstance(data, list | tuple):
        return sum(num_samples(batch) for batch in data)
    if not isinstance(data, DataLoader) or data.batch_size is None:
        return None  # whoever makes the batches himself may repeat or leave out samples
    try:
        length = len(data.sampler)  # type: ignore[arg-type]
    except TypeError:  # a streaming data set has no length; progress then shows counts only
        return None
    return length - length % data.batch_size if data.drop_last else length
