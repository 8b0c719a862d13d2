"""A package's public names, imported when they are first used: importing the package is cheap."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy(
    package: str, homes: Mapping[str, str], rooms: tuple[str, ...] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package.

    Args:
        package: its `__name__`.
        homes: the module of each public name, relative to the package, such as ".verbs.audit".
        rooms: modules of the package that are public themselves.
    """

    def __getattr__(name: str) -> Any:
        if name in homes:
            value = getattr(importlib.import_module(homes[name], package), name)
        elif name in rooms:
            value = importlib.import_module(f".{name}", package)
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)  # so that it is asked for only once
        return value

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes, *rooms})

    return __getattr__, __dir__
