"""How much memory vectors as large as the weights may take: Lanczos vectors, probes, and products.

They are what a network with many weights needs beside its samples. Fewer of them at a time give the
same numbers in more passes over the data.
"""

from __future__ import annotations

import dataclasses

import torch

LEAST = 1 << 20  # bytes: less than that is no limit worth the passes that it would cost
SUM_BYTES = torch.float64.itemsize  # of an entry of the sums over the data


@dataclasses.dataclass(frozen=True)
class VectorMemory:
    """Bytes for such vectors, if the user has set a limit.

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
