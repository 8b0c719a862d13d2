"""Measures and studies that other packages add.

A package announces a module in its `pyproject.toml`; importing the module registers what it has:

    [project.entry-points."spiritlevel.measures"]
    mine = "my_package.my_measures"

`spiritlevel` announces its own additions with `announce`, which works without an installation.
"""

from __future__ import annotations

import importlib
from importlib import metadata
from typing import Literal

from .errors import SpiritlevelError

Group = Literal["spiritlevel.measures", "spiritlevel.studies"]
_announced: dict[Group, list[str]] = {}
_loaded: set[str] = set()


def announce(group: Group, module: str) -> None:
    """Have `module` imported before anything in the group is looked up."""
    _announced.setdefault(group, []).append(module)


def load(group: Group) -> None:
    """Import every announced module of the group that is not imported yet."""
    modules = list(_announced.get(group, ()))
    modules += [point.value for point in metadata.entry_points(group=group)]
    for module in modules:
        if module in _loaded:
            continue
        _loaded.add(module)  # first, so that the module itself may look something up
        try:
            importlib.import_module(module)
        except Exception as error:
            _loaded.discard(module)
            raise SpiritlevelError(
                f"The module {module!r}, which an installed package announces under {group!r}, "
                f"cannot be imported: {type(error).__name__}: {error}. Repair or uninstall that "
                "package."
            ) from error
