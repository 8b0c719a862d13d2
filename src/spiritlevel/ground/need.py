"""One check of a value, and one shape of error: what it must be, what came, what to do next."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from numbers import Integral, Real
from typing import Any, TypeVar

from .errors import SpiritlevelError, brief, suggestion

Value = TypeVar("Value")
Test = Callable[[Any], bool]
LARGEST = 2**63  # of whole numbers: what torch can count to


def need(
    name: str,
    value: Value,
    test: Test,
    wanted: str,
    then: str = "",
    *,
    of: str = "",
    what: str = "argument",
    typed: bool = False,
) -> Value:
    """Return `value` if it passes `test`; otherwise say what was needed, what came, what to do.

    Args:
        wanted: what the value must be, to complete "must be ...".
        then: sentences on what to do next, or what is typical.
        of: whose argument it is, if that is not clear from the call.
        what: "argument", or the word for another kind of value, such as "option" or "setting".
        typed: whether to name the type of what came.

    >>> need("rho", 0.05, number(above=0), "a number above 0", "Typical: 0.05.")
    0.05
    >>> need("rho", -1, number(above=0), "a number above 0", "Typical: 0.05.", of="SAM")
    Traceback (most recent call last):
    spiritlevel.ground.errors.SpiritlevelError: The 'rho' argument of SAM must be a number above 0. Got -1. Typical: 0.05.
    """  # noqa: E501
    if test(value):
        return value
    whose = f" of {of}" if of else ""
    came = f"{brief(value)}, of type {type(value).__name__}" if typed else brief(value)
    text = f"The {name!r} {what}{whose} must be {wanted}. Got {came}. {then}"
    raise SpiritlevelError(text.rstrip())


def need_one_of(
    name: str, value: Value, known: Iterable[str], then: str = "", *, of: str = ""
) -> Value:
    """`need` for one of several names; the error suggests one that is close.

    >>> need_one_of("by", "jiont", ["joint", "rise"])
    Traceback (most recent call last):
    spiritlevel.ground.errors.SpiritlevelError: The 'by' argument must be one of joint, rise. Got 'jiont'. Did you mean 'joint'?
    """  # noqa: E501
    names = list(known)
    hint = f"{suggestion(value, names)} {then}".strip()
    return need(name, value, one_of(names), f"one of {', '.join(names)}", hint, of=of)


def number(
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    below: float = math.inf,
    most: float = math.inf,
) -> Test:
    """A test for a finite number within bounds: `above` and `below` themselves are outside.

    >>> [number(above=0, most=1)(each) for each in (0, 0.5, 1, 2, True, "1", float("nan"))]
    [False, True, True, False, False, False, False]
    """

    def test(value: Any) -> bool:
        return is_number(value) and math.isfinite(value) and _within(value)

    def _within(value: Any) -> bool:
        return above < value < below and least <= value <= most

    return test


def whole(*, least: int = -LARGEST, most: int = LARGEST - 1) -> Test:
    """A test for a whole number within bounds, both of them inside.

    >>> [whole(least=1)(each) for each in (0, 1, 1.0, True, 2**70)]
    [False, True, False, False, False]
    """
    return lambda value: is_whole(value) and least <= value <= most


def one_of(possible: Iterable[Any]) -> Test:
    """A test for one of these, such as the names of an option.

    >>> one_of(["sum", "max"])("max"), one_of(["sum", "max"])(["max"])
    (True, False)
    """
    known = list(possible)

    def test(value: Any) -> bool:
        is_text = isinstance(value, str)  # also one of numpy
        return any((is_text or type(value) is type(each)) and value == each for each in known)

    return test


def or_none(test: Test) -> Test:
    """A test that lets None pass, too."""
    return lambda value: value is None or test(value)


def is_number(value: Any) -> bool:
    """A number, also of numpy, that torch can hold; True and False are none."""
    if isinstance(value, int) and abs(value) >= LARGEST:
        return False
    return isinstance(value, Real) and not isinstance(value, bool)


def is_whole(value: Any) -> bool:
    """A whole number, also of numpy, that torch can hold."""
    return isinstance(value, Integral) and is_number(value)
