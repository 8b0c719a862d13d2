"""Keys and values of a study as a person writes them: refused with the likely meaning if wrong."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...errors import SpiritlevelError, suggestion

Scalar = str | int | float | bool


def check_keys(where: str, given: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse the first key that is not known."""
    known = list(known)
    for key in given:
        if key not in known:
            raise SpiritlevelError(
                f"The study's {where} has an unknown key {key!r}.{suggestion(str(key), known)} "
                f"Known here: {', '.join(known)}."
            )


def as_mapping(where: str, value: object) -> dict[str, Any]:
    """A section of a study; nothing at all is an empty section."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise SpiritlevelError(
            f"The study's {where} must be a mapping of names to values. Got {value!r}."
        )
    return dict(value)


def is_scalar(value: object) -> bool:
    """What can stand in a grid: it has one value that JSON can write."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, str | int | bool)


@dataclasses.dataclass(frozen=True)
class Field:
    """One value of a section: its type, its default, and what it must be."""

    kind: type
    default: Any
    need: str
    allowed: Callable[[Any], bool]

    def read(self, where: str, value: object) -> Any:
        """The value in its own type, so that `1` and `1.0` are the same setting."""
        number: object = value
        # YAML reads 1e-3 (no point) as a string.
        if self.kind in (int, float) and isinstance(value, str):
            try:
                number = float(value)
            except ValueError:
                number = value
        if self.kind is float and isinstance(number, int) and not isinstance(number, bool):
            number = float(number)
        if self.kind is int and isinstance(number, float) and number.is_integer():
            number = int(number)
        fits = isinstance(number, self.kind) and not (
            self.kind is not bool and isinstance(number, bool)
        )
        if not fits or not self.allowed(number):
            raise SpiritlevelError(f"The study's {where} must be {self.need}. Got {value!r}.")
        return number


def one_of(*names: str, default: str | None) -> Field:
    """A word out of several."""
    return Field(str, default, f"one of {', '.join(names)}", lambda value: value in names)


def text(need: str) -> Field:
    """Any words at all."""
    return Field(str, None, need, lambda value: bool(value))


def flag() -> Field:
    """Yes or no."""
    return Field(bool, False, "true or false", lambda value: True)


def number(kind: type, default: Any, need: str, allowed: Callable[[Any], bool]) -> Field:
    """A finite number with a range."""
    return Field(kind, default, need, lambda value: math.isfinite(value) and allowed(value))


@dataclasses.dataclass(frozen=True)
class ListField(Field):
    """Several numbers in one value."""

    def read(self, where: str, value: object) -> Any:
        """Each in its own type."""
        if not isinstance(value, list | tuple) or not value:
            raise SpiritlevelError(f"The study's {where} must be {self.need}. Got {value!r}.")
        return [super(ListField, self).read(where, each) for each in value]


def numbers(need: str, allowed: Callable[[Any], bool]) -> Field:
    """A list of finite numbers, each with a range."""
    return ListField(float, None, need, lambda value: math.isfinite(value) and allowed(value))


def read_fields(where: str, given: object, fields: Mapping[str, Field]) -> dict[str, Any]:
    """A section with every value in its own type; one that is not there is left out."""
    values = as_mapping(where, given)
    check_keys(where, values, fields)
    return {
        key: fields[key].read(f"{where}.{key}", value)
        for key, value in values.items()
        if value is not None
    }
