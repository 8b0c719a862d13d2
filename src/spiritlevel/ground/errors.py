"""Errors that say what was needed, what came, and what to do next."""

from __future__ import annotations

import difflib
import importlib
import re
import reprlib
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

LONG_WORD = re.compile(r"(\S{150})\S{400,}(\S{50})")  # what was given, repeated in an error text
LONGEST = 4000  # characters of an error text
BEGINNING, END = 2500, 1000  # of a longer one: what was needed, and what to do next


class SpiritlevelError(ValueError):
    """A request that cannot be met. The text names the argument, the need, and what to do.

    What was given may be of any length; the text shows the beginning and the end of it.
    """

    def __init__(self, text: object = "") -> None:
        text = LONG_WORD.sub(r"\1...\2", str(text))
        if len(text) > LONGEST:
            text = f"{text[:BEGINNING]} ... {text[-END:]}"
        super().__init__(text)


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
    """Whether memory ran out, on a GPU or in the process: reported unless another way is left.

    torch raises a plain RuntimeError where the system has no memory for a tensor.

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("no rule for vmap"))
    (True, False)
    """
    import torch  # here, so that a shell's completion need not wait for it

    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


class _Short(reprlib.Repr):
    """Values on one short line, also those that Python itself cannot write."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = 200  # whole paths
        self.maxlist = self.maxtuple = self.maxset = self.maxdict = 12

    def repr_int(self, x: int, level: int) -> str:
        """Python writes no number of more than 4,300 digits."""
        if x.bit_length() < 1000:
            return super().repr_int(x, level)
        return f"a whole number of {x.bit_length():,} bits"


_SHORT = _Short()


def brief(value: Any) -> str:
    """A value for an error text: on one line and short, whatever it is.

    >>> brief("tf32"), brief([10**5000, "x"]), len(brief("x" * 100_000))
    ("'tf32'", "[a whole number of 16,610 bits, 'x']", 200)
    """
    try:
        return " ".join(_SHORT.repr(value).split())
    except Exception:  # of a user's class
        return f"something of type {type(value).__name__}"


def suggestion(name: object, possible: Iterable[str], *, most: int = 2) -> str:
    """A hint at what was probably meant, for the end of an error text.

    >>> suggestion("momentun", ["lr", "momentum"])
    " Did you mean 'momentum'?"
    """
    if not isinstance(name, str):  # it was refused for that
        return ""
    close = difflib.get_close_matches(name, list(possible), n=most)
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
