"""Some or all samples of any data, in batches, with the attention mask where the data has one."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from .loading import load
from .masks import read_attention_mask

Inputs = Tensor | dict[str, Tensor]  # a dict with the mask, where the data has one


def load_samples(
    name: str, *, split: str = "train", samples: int | None = None, seed: int = 0
) -> tuple[Inputs, Tensor, str]:
    """Inputs, targets and a description; at most `samples` of them, drawn at random."""
    x, y = load(name, split)
    mask = None
    if name.lower().endswith(".npz"):
        mask = read_attention_mask(os.path.expanduser(name), split, x)
    whole = f"samples of {name} ({split})" if name == "digits" else f"samples of {name}"
    origin = f"{len(x)} {whole}"
    if samples is not None and samples < len(x):
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(len(x), generator=generator)[:samples].sort().values
        origin = f"{samples} of {len(x)} {whole}, drawn with seed {seed}"
        x, y = x[chosen], y[chosen]
        mask = None if mask is None else mask[chosen]
    if mask is None:
        return x, y, origin
    return {"input_ids": x, "attention_mask": mask}, y, f"{origin}, with an attention mask"


def in_batches(x: Inputs, y: Tensor, size: int) -> list[tuple[Any, Tensor]]:
    """Pairs of inputs and targets, `size` samples at a time."""
    targets = y.split(size)
    if isinstance(x, Tensor):
        return list(zip(x.split(size), targets, strict=True))
    parts = [part.split(size) for part in x.values()]
    inputs = (dict(zip(x, each, strict=True)) for each in zip(*parts, strict=True))
    return list(zip(inputs, targets, strict=True))
