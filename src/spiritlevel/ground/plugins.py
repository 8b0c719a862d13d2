"""Measures and studies that other packages add.

A package names a module in its `pyproject.toml`; importing the module registers what it adds:

    [project.entry-points."spiritlevel.measures"]
    mine = "my_package.my_measures"

Within this package `announce` does the same, which also works without an installation.
"""

from __future__ import annotations

import importlib
import sys
from importlib import metadata
from typing import Literal

from .errors import SpiritlevelError

Group = Literal["spiritlevel.measures", "spiritlevel.studies", "spiritlevel.pages"]
_announced: dict[Group, list[str]] = {}
_imported: set[str] = set()
_searched: dict[Group, tuple[str, ...]] = {}  # the sys.path at the last search: searching is slow


def announce(group: Group, module: str) -> None:
    """Have `module` imported before anything in the group is looked up."""
    _announced.setdefault(group, []).append(module)
    _searched.pop(group, None)


def load(group: Group) -> None:
    """Import every module of the group that is not imported yet."""
    if _searched.get(group) == tuple(sys.path):
        return
    before = tuple(sys.path)
    modules = list(_announced.get(group, ()))
    modules += [point.module for point in metadata.entry_points(group=group)]
    for module in modules:
        if module not in _imported:
            _imported.add(module)  # first, so that the module itself may look something up
            _import(group, module)
    _searched[group] = before


def _import(group: Group, module: str) -> None:
    try:
        importlib.import_module(module)
    except Exception as error:
        _imported.discard(module)
        raise SpiritlevelError(
            f"The module {module!r}, which an installed package names under the entry point "
            f"{group!r}, cannot be imported: {type(error).__name__}: {error}. Repair or uninstall "
            "that package."
        ) from error
