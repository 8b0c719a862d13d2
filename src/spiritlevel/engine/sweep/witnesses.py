"""Samples that are kept for a second look, with the values that the sweep gave them."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Collection, Mapping
from typing import Any

from ...model import batches as _batches
from ...model.batches import BatchLocation
from .sums import ChunkValues, SweepSums

WITNESSES = 2  # samples that are looked at again
NEIGHBOURS = 4  # samples on which the gradient is compared with differences of the loss
LEAST_CHANCE = 1e-300  # of a sample to be looked at, without curvature or with too much of it


@dataclasses.dataclass(frozen=True)
class Witness:
    """A sample, and the values that the sweep gave it, by kind of row."""

    sample: Any
    where: BatchLocation
    rows: Mapping[str, Mapping[str, float]]
    neighbours: Any  # it and a few others of its batch: one alone may be where the model is flat


class Witnesses:
    """A few samples from all chunks of the data, each chunk with the same probability."""

    def __init__(self, sums: SweepSums) -> None:
        """`sums` name the rows of the values."""
        self.kept: list[Witness] = []
        self._sums = sums
        self._random = random.Random(0)
        self._chunks = 0

    def offer(
        self, values: ChunkValues, batch: Any, where: BatchLocation, kinds: Collection[str]
    ) -> None:
        """Keep a sample of this chunk, or not, with its values of some kinds of rows."""
        self._chunks += 1
        place = len(self.kept)
        if place == WITNESSES:
            place = self._random.randrange(self._chunks)
            if place >= WITNESSES:
                return
        sizes = values.rows["trace"].abs().sum(dim=0).tolist()
        chances = [size if 0.0 < size < math.inf else LEAST_CHANCE for size in sizes]
        (index,) = self._random.choices(range(len(sizes)), chances)
        rows = {
            kind: dict(
                zip(self._sums.index[kind], values.rows[kind][:, index].tolist(), strict=True)
            )
            for kind in kinds
        }
        sample = _batches.take(batch, slice(index, index + 1))
        start = max(0, min(index, len(sizes) - NEIGHBOURS))
        neighbours = _batches.take(batch, slice(start, start + NEIGHBOURS))
        location = dataclasses.replace(where, start=where.start + index, first=where.first + index)
        self.kept[place : place + 1] = [Witness(sample, location, rows, neighbours)]
