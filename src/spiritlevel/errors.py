"""Errors that say what was needed, what came, and what to do next."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Iterable
from types import ModuleType


class SpiritlevelError(ValueError):
    """A request that cannot be met. The text names the argument, the need, and what to do."""


class NotApplicable(SpiritlevelError):
    """A measure does not apply to this network, which only the pass over all data showed."""


class NotFinite(SpiritlevelError):
    """Outputs or a loss that are not finite: the training has diverged, or the data are bad."""


class MissingExtra(SpiritlevelError, ImportError):
    """An optional package is missing; the text shows the pip command that installs it.

    >>> print(MissingExtra(what="Report tables", package="pandas", extra="frames"))
    Report tables needs pandas: pip install 'spiritlevel[frames]'
    """

    def __init__(self, *, what: str, package: str, extra: str) -> None:
        super().__init__(f"{what} needs {package}: pip install 'spiritlevel[{extra}]'")


def require(package: str, *, what: str, extra: str) -> ModuleType:
    """Import an optional package, or raise with the pip command that installs it."""
    if sys.modules.get(package) is not None:  # importing again takes ten times as long
        return sys.modules[package]
    try:
        return importlib.import_module(package)
    except ImportError as error:
        name = package.split(".")[0]
        raise MissingExtra(what=what, package=name, extra=extra) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on a GPU or in the process: to be reported, not worked around.

    torch raises a plain RuntimeError where the system has no memory for a tensor.

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("no rule for vmap"))
    (True, False)
    """
    import torch  # here, so that a shell's completion need not wait for it

    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


def suggestion(name: str, possible: Iterable[str], *, most: int = 2) -> str:
    """A hint at what was probably meant, for the end of an error text.

    >>> suggestion("momentun", ["lr", "momentum"])
    " Did you mean 'momentum'?"
    """
    close = difflib.get_close_matches(name, list(possible), n=most)
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
