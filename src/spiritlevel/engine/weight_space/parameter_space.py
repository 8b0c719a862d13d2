"""Some parameters of a model as one flat vector, and back; and all of them in groups.

A look at derivatives holds several vectors as large as what it looks at. A model that just fits
into memory is therefore looked at group by group, in the order of its parameters. What is not seen
then is a derivative that is wrong only between parameters of two groups.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ...model.surface import Surface

MOST = 1_000_000_000  # numbers in a group of more than one parameter


class ParameterSpace:
    """Some parameters as one flat vector, in the order of their names."""

    def __init__(self, surface: Surface, names: Sequence[str] | None = None) -> None:
        """`names` are those of the parameters; None takes all measured ones."""
        self.names = tuple(surface.parameters if names is None else names)
        self.shapes = [surface.parameters[name].shape for name in self.names]
        self.dtypes = [surface.parameters[name].dtype for name in self.names]
        ends = [0]
        for shape in self.shapes:
            ends.append(ends[-1] + shape.numel())
        self.size = ends[-1]
        self.slices = {
            name: slice(a, b) for name, a, b in zip(self.names, ends, ends[1:], strict=False)
        }
        self.dtype, self.device = surface.dtype, surface.device
        # of a model that is divided among processes all of this is about the part of this one
        shards, processes = surface.shards, surface.processes
        self.whole = self.size if shards is None else shards.count(self.names)
        self.share = self.size if shards is None else math.ceil(self.whole / processes.size)
        self.rank = 0 if shards is None else processes.rank

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """The parts by name, in the parameters' shapes and types; not copied if types agree.

        Dimensions before the last one are kept in front.
        """
        if len(set(self.dtypes)) == 1:
            vector = vector.to(self.dtypes[0])  # all at once
        kinds = zip(self.slices.items(), self.shapes, self.dtypes, strict=True)
        front = vector.shape[:-1]
        return {
            name: _from_even_places(vector[..., part]).view(front + shape).to(dtype)
            for (name, part), shape, dtype in kinds
        }

    def join(self, parts: Sequence[Tensor | None], front: Sequence[int] = ()) -> Tensor:
        """The inverse of `split`, for parts with these dimensions in front; None means zeros."""
        flat = [
            torch.zeros(*front, shape.numel(), dtype=self.dtype, device=self.device)
            if values is None
            else values.reshape(*front, -1).to(self.dtype)
            for shape, values in zip(self.shapes, parts, strict=True)
        ]
        return torch.cat(flat, dim=-1)


def _from_even_places(part: Tensor) -> Tensor:
    """The part, copied if a row of it begins at an odd number of its storage.

    The model may read a parameter as complex numbers (`torch.view_as_complex`), which needs this.
    """
    steps = [step for step, size in zip(part.stride(), part.shape, strict=True) if size > 1]
    is_odd = part.storage_offset() % 2 or any(step % 2 for step in steps[:-1])
    return part.clone() if is_odd else part


def parameter_groups(surface: Surface) -> list[list[str]]:
    """The names of the measured parameters; one group unless there are very many numbers."""
    found: list[list[str]] = [[]]
    size = 0
    for name, parameter in surface.parameters.items():
        if found[-1] and size + parameter.numel() > MOST:
            found.append([])
            size = 0
        found[-1].append(name)
        size += parameter.numel()
    return found


@contextlib.contextmanager
def restricted_to(surface: Surface, names: list[str]) -> Iterator[None]:
    """Let the surface have these parameters alone during the block."""
    everything = surface.parameters
    surface.parameters = {name: everything[name] for name in names}
    try:
        yield
    finally:
        surface.parameters = everything
