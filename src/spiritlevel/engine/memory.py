"""How much memory samples and vectors as large as the weights may take.

The limit is what the user has set, or what suits the device. Fewer at a time give the same numbers
in more passes over the data.
"""

from __future__ import annotations

import dataclasses

import torch

CPU_CHUNK = 640 << 20  # bytes: larger chunks outgrow the caches and get slower
CPU_GRAPHS = 2 << 30  # bytes of graphs that are kept, chunk by chunk
KEPT_GRADIENTS = 1 << 30  # bytes of the gradients of these chunks, where nobody set a limit
_sharing = 1  # processes that use this process's GPU, itself included
LEAST = 1 << 20  # bytes: less than that is no limit worth the passes that it would cost
SUM_BYTES = torch.float64.itemsize  # of an entry of the sums over the data


def share_gpu(processes: int) -> None:
    """From now on so many processes use the GPU: each takes its part of the free memory."""
    global _sharing
    _sharing = processes


def chunk_memory(device: torch.device, limit: int | None) -> int:
    """Bytes that a chunk of samples may take."""
    if limit is not None:
        return limit
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free // (2 * _sharing))
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


def graphs_fit(
    num_samples: int, num_chunks: int, *, most: int, weights: int, is_limited: bool
) -> bool:
    """Whether the graphs of all chunks can be kept: of `most` samples, with their gradients.

    Each chunk has a gradient as large as the weights. A user who limits the memory has it limited
    for such vectors too, and then only one is kept.

    >>> sizes = {"most": 100, "weights": 1 << 28}
    >>> [graphs_fit(100, count, **sizes, is_limited=False) for count in (4, 5)]
    [True, False]
    >>> [graphs_fit(100, count, **sizes, is_limited=True) for count in (1, 2)]
    [True, False]
    """
    gradients = 1 if is_limited else max(1, KEPT_GRADIENTS // max(weights, 1))
    return num_samples <= most and num_chunks <= gradients


@dataclasses.dataclass(frozen=True)
class VectorMemory:
    """Bytes for vectors as large as the weights, if the user has set a limit.

    >>> VectorMemory(None).room(1 << 30) == 1 << 30, VectorMemory(5 << 20).room(1 << 30) >> 20
    (True, 5)
    """

    limit: int | None = None

    def room(self, most: int) -> int:
        """The limit, or `most` where that is less or nobody has set one."""
        return most if self.limit is None else min(most, max(self.limit, LEAST))

    @property
    def halved(self) -> VectorMemory:
        """For one of two kinds of vectors that are there at the same time."""
        return VectorMemory(None if self.limit is None else self.limit // 2)

    def vectors(self, most: int, entries: int, dtype: torch.dtype) -> int:
        """How many vectors to multiply in one pass over the data; at least one."""
        return max(1, self.room(most) // (max(entries, 1) * bytes_of_product(dtype)))


def bytes_of_product(dtype: torch.dtype) -> int:
    """Of one entry: the vector, its product with a chunk of the data, the sum, and the result.

    >>> bytes_of_product(torch.float32)
    20
    """
    return 3 * dtype.itemsize + SUM_BYTES
