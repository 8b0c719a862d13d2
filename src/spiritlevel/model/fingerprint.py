"""Notice when the data is not the same in every pass.

A number that takes several passes is about one set of samples. Sampling with replacement, shuffle
with drop_last, random augmentation and streams that run dry give other samples each time. So every
pass has a fingerprint: the sum over its samples of a hash of each one. It does not depend on the
order of the samples or on how they are divided into batches.

Batches that are padded to their longest sample are the exception: there the bits of a sample depend
on its neighbors. If such a pass differs, the values of each tensor are compared without regard to
their places, and passes may differ in the number of padding values.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from ..ground.errors import SpiritlevelError
from . import batches as _batches
from .bit_hashes import hash_rows, hash_tensor, plain, scramble

FIRST_SAMPLES = 64  # of a batch in which a pass ended early
MOST_FIRST_SAMPLES = 4096


@dataclasses.dataclass
class _Values:
    """The values of one tensor of the batches, whatever their places."""

    shapes: set[tuple[int, ...]] = dataclasses.field(default_factory=set)  # of a sample
    count: int = 0
    total: Tensor | int = 0
    outermost: list[Tensor] = dataclasses.field(default_factory=list)  # where padding would be
    whole: bool = True  # whether no batch was left out

    def add(self, shape: tuple[int, ...], rows: Tensor, *, large: bool) -> None:
        """Add a batch of samples of this shape; `rows` are their values.

        Adding up images takes as long as hashing them. Without `large` only tokens are added up.
        """
        if not large and (rows.is_floating_point() or rows.element_size() == 1):
            self.whole = False
        elif shape and rows.numel():
            self.count += rows.numel()
            self.total = self.total + _numbers(rows).sum(dtype=torch.int64)
            if self.shapes and shape not in self.shapes:
                self.outermost.append(_numbers(rows[:, [0, -1]]).flatten().long())
        self.shapes.add(shape)

    def differ_by_padding(self, other: _Values) -> bool:
        """Whether one value, added or removed, may explain the difference."""
        if not (self.whole and other.whole):
            return True
        gap = int(self.total) - int(other.total)
        surplus = self.count - other.count
        if surplus == 0:
            return gap == 0
        ends = [*self.outermost, *other.outermost]
        padding = {0}.union(*(part.unique().tolist() for part in ends))
        return any((gap - surplus * value) % (1 << 64) == 0 for value in padding)


class _Pass:
    """One pass over the data, as far as it has come."""

    def __init__(self, first_samples: Tensor | None, *, large: bool) -> None:
        self.large = large  # whether the values of large tensors are added up
        self.count = 0
        self.total: Tensor | int = 0
        self.values: dict[int, _Values] = {}
        self._expected = first_samples  # hashes that must occur
        self._occurred: Tensor | None = None

    def add(self, batch: Any) -> None:
        """A batch was read."""
        samples = _Samples(batch)
        if samples.size == 0:
            return
        hashes = samples.hashes()
        self.count += samples.size
        self.total = self.total + hashes.sum()
        for index, (shape, rows) in samples.rows.items():
            self.values.setdefault(index, _Values()).add(shape, rows, large=self.large)
        if self._expected is not None:
            occurred = torch.isin(self._expected, hashes)
            self._occurred = occurred if self._occurred is None else self._occurred | occurred

    @property
    def shapes(self) -> dict[int, set[tuple[int, ...]]]:
        """The shapes of a sample, by tensor."""
        return {index: values.shapes for index, values in self.values.items()}

    @property
    def lacks_first_samples(self) -> bool:
        """Whether samples are missing that an earlier look at the data has seen."""
        if self._expected is None:
            return False
        return self._occurred is None or not bool(self._occurred.all())

    def same_samples(self, other: _Pass) -> bool:
        """Whether both passes read the same samples, in any order."""
        if self.count != other.count:
            return False
        if int(self.total) == int(other.total):
            return True
        return _padded(self.shapes, other.shapes) and all(
            values.differ_by_padding(other.values[index]) for index, values in self.values.items()
        )


class DataRecord:
    """What the passes of one call over the same data have read."""

    def __init__(self, data: Any = None) -> None:
        """Refuses a loader that is known to draw other samples in each pass."""
        if isinstance(data, DataLoader) and (drawn := _drawn_anew(data)):
            _refuse(drawn)
        self._num_passes = 0
        self._first_pass: _Pass | None = None
        self._first_samples: list[Tensor] = []  # hashes, from passes that were not finished
        self._shapes: dict[int, set[tuple[int, ...]]] = {}  # of those samples

    def advance(self) -> None:
        """Before a pass: let torch's random state differ from that of all passes before.

        Every part of a call starts from the same state, and so augmentation would draw the same
        again. The user's loader draws on, however.
        """
        self._num_passes += 1
        torch.rand(self._num_passes)

    def watched(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The batches of one pass; at its end SpiritlevelError if they are not what they were."""
        started = torch.cat(self._first_samples) if self._first_samples else None
        first = self._first_pass
        current = _Pass(
            started if first is None else None, large=first is None or _padded(first.shapes)
        )
        batch: Any = None
        try:
            for batch in batches:
                yield batch
                current.add(batch)
        except GeneratorExit:
            if self._first_pass is None and batch is not None:
                with contextlib.suppress(SpiritlevelError):  # what is no batch was refused already
                    self._remember(batch)
            raise
        self._compare(current)

    def _remember(self, batch: Any) -> None:
        """Samples at which a pass was left: the next whole pass must have them."""
        if sum(map(len, self._first_samples)) >= MOST_FIRST_SAMPLES:
            return
        samples = _Samples(_batches.take(batch, slice(FIRST_SAMPLES)))
        if samples.size:
            self._first_samples.append(samples.hashes())
            for index, (shape, _) in samples.rows.items():
                self._shapes.setdefault(index, set()).add(shape)

    def _compare(self, current: _Pass) -> None:
        first = self._first_pass
        if first is None:
            self._first_pass = current
            if current.lacks_first_samples and not _padded(self._shapes, current.shapes):
                _refuse(f"{current.count} samples, and the first ones seen are not among them")
        elif current.count != first.count:
            _refuse(f"{first.count} samples in one pass and {current.count} in another")
        elif not current.same_samples(first):
            _refuse(f"{current.count} samples in every pass, with other values")


def _drawn_anew(loader: DataLoader[Any]) -> str:
    """Why a loader of torch draws other samples in each pass; empty if it does not."""
    sampler: Any = loader.sampler
    if isinstance(sampler, WeightedRandomSampler):
        return f"a {type(sampler).__name__}"
    if isinstance(sampler, RandomSampler):
        if sampler.replacement:
            return "a RandomSampler with replacement"
        if sampler.num_samples < len(sampler.data_source):
            part = f"{sampler.num_samples} of {len(sampler.data_source)}"
            return f"a RandomSampler that draws {part} samples"
    if not isinstance(sampler, RandomSampler | SubsetRandomSampler):
        return ""  # in order, or a sampler whose passes will tell
    dropped = len(sampler) % loader.batch_size if loader.drop_last and loader.batch_size else 0
    return f"a loader that shuffles and drops {dropped} of {len(sampler)} samples" * bool(dropped)


def _refuse(came: str) -> None:
    raise SpiritlevelError(
        f"The 'data' argument must give the same samples in every pass. Got {came}. Look for "
        "sampling with replacement, shuffle=True with drop_last=True, random augmentation, or a "
        "stream that can be read only once. To measure one draw of the samples, pass "
        "list(loader)."
    )


def _padded(*shapes: Mapping[int, set[tuple[int, ...]]]) -> bool:
    """Whether the samples of some tensor have several shapes."""
    indices = {index for each in shapes for index in each}
    return any(len(set().union(*(each.get(i, set()) for each in shapes))) > 1 for i in indices)


class _Samples:
    """A batch as one row of values per sample, for each of its tensors."""

    def __init__(self, batch: Any) -> None:
        tensors = _batches.tensors(batch)
        self.size = _batches.num_samples(batch)
        self.rows: dict[int, tuple[tuple[int, ...], Tensor]] = {}  # shape of a sample, values
        self.shared: dict[int, Tensor] = {}  # by all samples, as in `batches.take`
        for index, tensor in enumerate(tensors):
            if tensor.dim() and len(tensor) == self.size:
                values = plain(tensor)
                width = values.numel() // max(self.size, 1)
                self.rows[index] = tuple(tensor.shape[1:]), values.reshape(self.size, width)
            else:
                self.shared[index] = tensor
        self.lists = list(_lists(batch, self.size))

    def hashes(self) -> Tensor:
        """A scrambled hash of each sample, with all that belongs to it; shape (size,)."""
        parts = [hash_rows(rows, salt=index << 32) for index, (_, rows) in self.rows.items()]
        parts += [hash_tensor(t) * (2 * index + 1) for index, t in self.shared.items()]
        for values in self.lists:
            parts.append(torch.tensor([_hash_text(v) for v in values], device=parts[0].device))
        return scramble(functools.reduce(torch.add, parts))


def _lists(batch: Any, size: int) -> Iterator[Sequence[Any]]:
    """Lists with one name or number for each sample, anywhere in a nested batch."""
    if isinstance(batch, Mapping):
        for value in batch.values():
            yield from _lists(value, size)
    elif isinstance(batch, list | tuple):
        if len(batch) == size and all(isinstance(value, str | int | float) for value in batch):
            yield batch
        else:
            for value in batch:
                yield from _lists(value, size)


def _hash_text(value: Any) -> int:
    digest = hashlib.blake2b(repr(value).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def _numbers(rows: Tensor) -> Tensor:
    """The values as integers, those of tokens scrambled, since they are small; shape as `rows`."""
    if rows.is_floating_point():
        return rows.contiguous().view(_SAME_SIZE[rows.element_size()])
    return scramble(rows.long()) if rows.element_size() > 1 else rows


_SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
