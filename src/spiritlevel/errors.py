"""How a refusal reads: what was needed, what came, what to do next."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from types import ModuleType


class SpiritlevelError(ValueError):
    """A request that cannot be met; the text names argument, need, what came, next step."""


class NotApplicable(SpiritlevelError):
    """A measure is not made for this network, which was seen only when all data went through it."""


class MissingExtra(SpiritlevelError, ImportError):
    """An optional package is absent; the text is the pip line that brings it.

    >>> print(MissingExtra(what="Report tables", package="pandas", extra="frames"))
    Report tables needs pandas: pip install 'spiritlevel[frames]'
    """

    def __init__(self, *, what: str, package: str, extra: str) -> None:
        super().__init__(f"{what} needs {package}: pip install 'spiritlevel[{extra}]'")


def require(package: str, *, what: str, extra: str) -> ModuleType:
    """Import an optional package, or say which extra brings it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        name = package.split(".")[0]
        raise MissingExtra(what=what, package=name, extra=extra) from error


def suggestion(name: str, known: Iterable[str], *, most: int = 2) -> str:
    """What was probably meant, to follow a refusal.

    >>> suggestion("momentun", ["lr", "momentum"])
    " Did you mean 'momentum'?"
    """
    close = difflib.get_close_matches(name, list(known), n=most)
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
