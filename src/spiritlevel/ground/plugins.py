"""What other packages add, and what the parts of this project add to each other: entry points.

A package names a module in its `pyproject.toml`; importing the module registers what it adds:

    [project.entry-points."spiritlevel.measures"]
    mine = "my_package.my_measures"

For "spiritlevel.commands" the entry point is the command itself, under its name:

    [project.entry-points."spiritlevel.commands"]
    mine = "my_package.my_command:command"
"""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Any, Literal

from .errors import SpiritlevelError

Group = Literal[
    "spiritlevel.measures", "spiritlevel.studies", "spiritlevel.pages", "spiritlevel.commands"
]
_imported: set[str] = set()
_loaded: dict[Group, tuple[str, ...]] = {}  # the sys.path at which all of a group was imported
_found: dict[Group, tuple[tuple[str, ...], tuple[metadata.EntryPoint, ...]]] = {}


def load(group: Group) -> None:
    """Import every module of the group that is not imported yet."""
    before = tuple(sys.path)
    if _loaded.get(group) == before:
        return
    for point in points(group):
        if point.module not in _imported:
            _imported.add(point.module)  # first, so that the module itself may look something up
            try:
                load_point(point)
            except BaseException:
                _imported.discard(point.module)
                raise
    _loaded[group] = before


def points(group: Group) -> tuple[metadata.EntryPoint, ...]:
    """The entry points of the group, of all installed packages; nothing is imported for it."""
    path = tuple(sys.path)
    if _found.get(group, ((),))[0] != path:  # searching is slow
        _found[group] = path, tuple(metadata.entry_points(group=group))
    return _found[group][1]


def load_point(point: metadata.EntryPoint) -> Any:
    """What the entry point names: a module, or something in it."""
    try:
        return point.load()
    except Exception as error:
        raise SpiritlevelError(
            f"The module {point.module!r}, which an installed package names under the entry point "
            f"{point.group!r}, cannot be imported: {type(error).__name__}: {error}. Repair or "
            "uninstall that package."
        ) from error
