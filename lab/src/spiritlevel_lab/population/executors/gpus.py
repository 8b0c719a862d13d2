"""Which GPU a worker uses, and with how many others."""

from __future__ import annotations

import math

import torch


def device_of(index: int, device: str) -> str:
    """Distribute workers over the GPUs; several may share one."""
    if device != "cuda":
        return device
    return f"cuda:{index % max(1, torch.cuda.device_count())}"


def workers_per_gpu(workers: int, device: str) -> int:
    """How many of the workers use one GPU; those of "cuda:1" are all on that one."""
    gpus = max(1, torch.cuda.device_count()) if device == "cuda" else 1
    return math.ceil(workers / gpus)
