"""Single samples, as data sets hold them, put together into batches.

A list of samples and a data set without a loader are what users have at hand. Both are read in
their own order; samples of different lengths need padding, which only a tokenizer knows how to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from ..ground.errors import SpiritlevelError

TOGETHER = 64  # samples in a batch
PADDED = (
    "Pass a loader that pads them, for example torch.utils.data.DataLoader(data, batch_size=16, "
    "collate_fn=transformers.DataCollatorWithPadding(tokenizer))."
)


def holds_samples(data: Any) -> bool:
    """Whether this is a data set or a list of single samples, and not of batches."""
    if isinstance(data, DataLoader | IterableDataset):
        return False
    if isinstance(data, Dataset):
        return True
    by_number = isinstance(data, Sequence) or type(data).__module__.startswith("datasets.")
    return by_number and len(data) > 0 and is_sample(data[0])


def is_sample(item: Any) -> bool:
    """Whether the item is one sample: its target is a number, or its parts are plain lists.

    >>> is_sample((torch.zeros(3), 1)), is_sample((torch.zeros(8, 3), torch.zeros(8)))
    (True, False)
    >>> is_sample({"input_ids": [5, 7], "labels": 1})
    True
    """
    if isinstance(item, Mapping):
        parts = list(item.values())
        return bool(parts) and (any(map(_is_plain, parts)) or any(map(_is_number, parts)))
    pair = isinstance(item, list | tuple) and len(item) == 2
    return pair and (_is_number(item[1]) or _is_plain(item[1]))


def in_batches(data: Any) -> DataLoader[Any]:
    """The samples in batches, in their own order."""
    return DataLoader(data, batch_size=TOGETHER, collate_fn=_together)


def _is_number(part: Any) -> bool:
    return isinstance(part, int | float) or (isinstance(part, Tensor) and part.dim() == 0)


def _is_plain(part: Any) -> bool:
    return isinstance(part, list) and bool(part) and not isinstance(part[0], Tensor)


def _together(samples: list[Any]) -> Any:
    first = samples[0]
    if isinstance(first, Mapping):
        if texts := [key for key, value in first.items() if isinstance(value, str)]:
            raise SpiritlevelError(
                f"The samples of the data must hold numbers. Got text under {', '.join(texts)}. "
                "Tokenize it, and remove these columns: data.remove_columns([...])."
            )
        return {key: _stacked([sample[key] for sample in samples], key) for key in first}
    return default_collate([tuple(map(_as_tensor, sample)) for sample in samples])


def _stacked(parts: list[Any], key: str) -> Tensor:
    tensors = [_as_tensor(part) for part in parts]
    shapes = {tuple(tensor.shape) for tensor in tensors}
    if len(shapes) > 1:
        some = " and ".join(map(str, sorted(shapes)[:2]))
        raise SpiritlevelError(
            f"The samples of the data must have one shape to be put together. Got {some} under "
            f"{key!r}. {PADDED}"
        )
    return torch.stack(tensors)


def _as_tensor(part: Any) -> Any:
    return part if isinstance(part, Tensor) else torch.as_tensor(part)
