"""What other packages add, and what the parts of this project add to each other: entry points.

A package names a module in its `pyproject.toml`; importing the module registers what it adds:

    [project.entry-points."spiritlevel.measures"]
    mine = "my_package.my_measures"

For "spiritlevel.commands" the entry point is the command itself, under its name:

    [project.entry-points."spiritlevel.commands"]
    mine = "my_package.my_command:command"
"""

from __future__ import annotations

import os
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
        installed = metadata.distributions(path=_of_packages(path))
        every = (point for each in installed for point in each.entry_points)
        # A package may lie in two places of the path: its entry points count once.
        unique = {(point.name, point.value): point for point in every if point.group == group}
        _found[group] = path, tuple(unique.values())
    return _found[group][1]


def _of_packages(path: tuple[str, ...]) -> list[str]:
    """Where packages are installed: not the folder that somebody happens to work in.

    `python -m` puts that folder first, and a downloaded one may say of itself that it is installed.
    It counts if something else, such as PYTHONPATH or a .pth file, names it once more.
    """
    first, *others = path or ("",)
    named = [place for place in others if place]
    return named if first in ("", os.getcwd()) else [first, *named]


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
