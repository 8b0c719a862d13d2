"""Parameters of a large model in groups, so that vectors as large as a group fit beside it.

A look at derivatives holds several vectors as large as what it looks at. A model that just fits
into memory is therefore looked at group by group, in the order of its parameters. What is not seen
then is a derivative that is wrong only between parameters of two groups.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ...model.surface import Surface

MOST = 1_000_000_000  # numbers in a group of more than one parameter


def groups(surface: Surface) -> list[list[str]]:
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
def only(surface: Surface, names: list[str]) -> Iterator[None]:
    """Let the surface have these parameters alone during the block."""
    everything = surface.parameters
    surface.parameters = {name: everything[name] for name in names}
    try:
        yield
    finally:
        surface.parameters = everything
