"""How much memory samples may take: the limit that the user has set, or what suits the device."""

from __future__ import annotations

import torch

CPU_CHUNK = 640 << 20  # bytes: larger chunks outgrow the caches and get slower
CPU_GRAPHS = 2 << 30  # bytes of graphs that are kept, chunk by chunk


def chunk_memory(device: torch.device, limit: int | None) -> int:
    """Bytes that a chunk of samples may take."""
    if limit is not None:
        return limit
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free // 2)
    return CPU_CHUNK


def most_kept(device: torch.device, limit: int | None, *, chunk: int, graph: int) -> int:
    """How many samples may have their graphs kept, of `graph` bytes each: those of a chunk.

    On a CPU chunks are small for another reason than memory, and more of them fit.

    >>> most_kept(torch.device("cpu"), None, chunk=5, graph=1 << 20)
    2048
    >>> most_kept(torch.device("cpu"), 1 << 30, chunk=5, graph=1 << 20)
    5
    """
    is_small_for_speed = limit is None and device.type == "cpu"
    return max(chunk, CPU_GRAPHS // graph) if is_small_for_speed else chunk
