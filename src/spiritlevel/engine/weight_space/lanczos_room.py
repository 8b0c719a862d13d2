"""How many Lanczos vectors to keep, where, and which runs go side by side.

Without a limit as many are kept as make the run short. With one, the basis is compressed earlier,
and blocks of parameters that do not fit together run one after another. Below the least basis with
which a run converges, a GPU leaves the basis to the host; a CPU has nowhere to go.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from ...errors import SpiritlevelError
from .parameter_space import ParameterSpace
from .vector_memory import LEAST, VectorMemory, bytes_of_product

BASIS_BYTES = 1 << 30  # Lanczos vectors kept before the basis is compressed
MIN_BASIS, MAX_BASIS = 8, 120


@dataclasses.dataclass(frozen=True)
class BlockGroup:
    """Blocks that run side by side, by their place among all."""

    members: tuple[int, ...]
    bases: tuple[int, ...]  # vectors of each
    on_host: bool = False


def vector_dtype(space: ParameterSpace) -> torch.dtype:
    """At least float32: Lanczos vectors in half precision would not stay orthogonal."""
    return torch.promote_types(space.dtype, torch.float32)


def basis_size(space: ParameterSpace, num: int) -> int:
    """How many vectors to keep where nothing limits them: enough to converge."""
    fitting = BASIS_BYTES // (4 * max(space.size, 1))
    return max(_least(num), min(MAX_BASIS, fitting))


def least_bytes(space: ParameterSpace, num: int) -> int:
    """What the shortest basis takes, with the products of a block."""
    return _product_bytes(space, num) + _basis_bytes(space, num, _least(num))


def full_bytes(space: ParameterSpace, num: int) -> int:
    """What a run takes where nothing limits it."""
    return _product_bytes(space, num) + _basis_bytes(space, num, basis_size(space, num))


def check_room(space: ParameterSpace, num: int, memory: VectorMemory) -> None:
    """Refuse a limit that the shortest basis exceeds, before anything is run."""
    if memory.limit is None or space.device.type != "cpu":
        return
    least = least_bytes(space, num)
    if least > max(memory.limit, LEAST):
        raise SpiritlevelError(
            f"The 'memory' argument must be at least {2 * least} bytes for eigenvalues here: "
            f"{_least(num)} Lanczos vectors of {space.size} entries and their products take "
            f"{least} bytes, and half of the memory is for the samples. Got about "
            f"{2 * memory.limit}. Raise it, restrict 'layers', or ask for fewer eigenvalues."
        )


def groups_of(
    spaces: Sequence[ParameterSpace], num: int, memory: VectorMemory, *, kept: bool = False
) -> list[BlockGroup]:
    """The runs side by side; `kept` leaves half of the memory to those who keep the basis."""
    sizes = [basis_size(space, num) for space in spaces]
    if memory.limit is None:
        return [BlockGroup(tuple(range(len(spaces))), tuple(sizes))]
    room = max(memory.limit // (2 if kept else 1), LEAST)
    groups: list[list[int]] = []
    taken = room
    for i, space in enumerate(spaces):
        least = least_bytes(space, num)
        if taken + least > room:
            groups.append([])
            taken = 0
        groups[-1].append(i)
        taken += least
    return [_group(members, spaces, sizes, num, room) for members in groups]


def _group(
    members: Sequence[int],
    spaces: Sequence[ParameterSpace],
    sizes: Sequence[int],
    num: int,
    room: int,
) -> BlockGroup:
    left = room - sum(_product_bytes(spaces[i], num) for i in members)
    low, high = _least(num), max(sizes[i] for i in members)
    while low < high:  # the longest that fits, by halving
        middle = (low + high + 1) // 2
        if sum(_basis_bytes(spaces[i], num, min(middle, sizes[i])) for i in members) <= left:
            low = middle
        else:
            high = middle - 1
    on_host = spaces[members[0]].device.type != "cpu" and (
        sum(_basis_bytes(spaces[i], num, low) for i in members) > left
    )
    if on_host:
        return BlockGroup(tuple(members), tuple(sizes[i] for i in members), on_host=True)
    return BlockGroup(tuple(members), tuple(min(low, sizes[i]) for i in members))


def _least(num: int) -> int:
    return max(MIN_BASIS, 4 * num)


def _basis_bytes(space: ParameterSpace, num: int, basis: int) -> int:
    """The basis, and the rest of a block behind it."""
    return (min(basis, space.size) + num) * space.size * vector_dtype(space).itemsize


def _product_bytes(space: ParameterSpace, num: int) -> int:
    return num * space.size * bytes_of_product(vector_dtype(space))
