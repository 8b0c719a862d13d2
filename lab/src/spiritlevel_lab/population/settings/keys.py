"""Keys and values of a study as a person writes them: refused with the likely meaning if wrong.

A section of the settings is a frozen dataclass. Each of its fields is made here, with its default
and the check that a value given for it must pass:

    epochs: int = number(int, 20, "a whole number of at least 1", lambda v: v >= 1)
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, cast

from spiritlevel.ground.errors import SpiritlevelError, brief, suggestion
from spiritlevel.ground.files.names import as_path

CHECK = "check"  # where a dataclass field holds its check


def check_keys(where: str, given: Mapping[str, Any], allowed: Iterable[str]) -> None:
    """Refuse the first key that is not allowed."""
    allowed = list(allowed)
    for key in given:
        if key not in allowed:
            raise SpiritlevelError(
                f"The study's {where} has an unknown key {key!r}.{suggestion(key, allowed)} "
                f"Known here: {', '.join(allowed)}."
            )


def as_mapping(where: str, value: object) -> dict[str, Any]:
    """A section of a study; nothing at all is an empty section."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise SpiritlevelError(
            f"The study's {where} must be a mapping of names to values. Got {brief(value)}."
        )
    return dict(value)


def as_named(where: str, given: object) -> dict[str, Any]:
    """A section that is a name alone, such as `mlp`, or a mapping with a name and more."""
    values = {"name": given} if isinstance(given, str) else as_mapping(where, given)
    if not isinstance(values.get("name"), str) or not values["name"]:
        raise SpiritlevelError(
            f"The study's {where} must be a name, or a mapping with a 'name' and options. "
            f"Got {brief(given)}."
        )
    return values


def is_scalar(value: object) -> bool:
    """Whether it is one value that JSON can write, as a grid needs."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, str | int | bool)


# -- fields of a section -------------------------------------------------------------------------


class Reader(Protocol):
    """Turns what a person wrote into the value of a field."""

    def read(self, where: str, value: object) -> Any:
        """The value in its own type, or an error that names the place."""


@dataclasses.dataclass(frozen=True)
class Check:
    """The type of a value, and what it must be."""

    kind: type
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
        is_whole = isinstance(number, int) and not isinstance(number, bool)
        if self.kind is float and is_whole and abs(cast(int, number)) < 2**63:
            number = float(cast(int, number))
        if self.kind is int and isinstance(number, float) and number.is_integer():
            number = int(number)
        fits = isinstance(number, self.kind) and not (
            self.kind is not bool and isinstance(number, bool)
        )
        if isinstance(number, int) and abs(number) >= 2**63:  # no tensor can have so many of it
            fits = False
        if not fits or not self.allowed(number):
            raise SpiritlevelError(f"The study's {where} must be {self.need}. Got {brief(value)}.")
        return number


class ListCheck(Check):
    """Several numbers in one value."""

    def read(self, where: str, value: object) -> Any:
        """A tuple, each number in its own type."""
        if not isinstance(value, list | tuple) or not value:
            raise SpiritlevelError(f"The study's {where} must be {self.need}. Got {brief(value)}.")
        return tuple(super(ListCheck, self).read(where, each) for each in value)


class PathCheck(Check):
    """The path of a file or folder, which need not be there."""

    def read(self, where: str, value: object) -> Any:
        """The text as it was given."""
        given = super().read(where, value)
        as_path(os.path.expanduser(given), what=f"study's {where}")
        return given


# Any, as for dataclasses.field: the annotation of the field says its type.
def checked(reader: Reader, default: Any) -> Any:
    """A field of a section whose values are read by `reader`."""
    return dataclasses.field(default=default, metadata={CHECK: reader})


def one_of(*names: str, default: str | None) -> Any:
    """One of several names."""
    need = f"one of {', '.join(names)}"
    return checked(Check(str, need, lambda value: value in names), default)


def text(need: str) -> Any:
    """A text that is not empty; None by default."""
    return checked(Check(str, need, bool), None)


def path(need: str) -> Any:
    """A text that the system can be asked for as a path; None by default."""
    return checked(PathCheck(str, need, bool), None)


def flag() -> Any:
    """True or false; false by default."""
    return checked(Check(bool, "true or false", lambda value: True), False)


def number(kind: type, default: Any, need: str, allowed: Callable[[Any], bool]) -> Any:
    """A finite number within a range."""
    return checked(Check(kind, need, lambda v: math.isfinite(v) and allowed(v)), default)


def numbers(default: tuple[float, ...], need: str, allowed: Callable[[Any], bool]) -> Any:
    """A list of finite numbers within a range."""
    return checked(ListCheck(float, need, lambda v: math.isfinite(v) and allowed(v)), default)


# -- whole sections ------------------------------------------------------------------------------


# By section: a study of a thousand runs asks for them several thousand times.
_READERS: dict[type, Mapping[str, Reader]] = {}
_DEFAULTS: dict[type, Mapping[str, Any]] = {}


def readers_of(section: type) -> Mapping[str, Reader]:
    """The keys a person may write in this section, with what reads each."""
    if section not in _READERS:
        fields = [f for f in dataclasses.fields(section) if CHECK in f.metadata]
        _DEFAULTS[section] = {field.name: field.default for field in fields}
        _READERS[section] = {field.name: field.metadata[CHECK] for field in fields}
    return _READERS[section]


def read_values(where: str, given: Mapping[str, Any], section: type) -> dict[str, Any]:
    """The given values of a section's fields, each in its own type; a null is left out."""
    return {
        key: reader.read(f"{where}.{key}", given[key])
        for key, reader in readers_of(section).items()
        if given.get(key) is not None
    }


def changed_values(section: Any) -> dict[str, Any]:
    """The values of a section that differ from their defaults.

    What has no effect is not part of a run's id: so a key that is added to a section later leaves
    the ids of older runs as they are.
    """
    readers_of(type(section))  # which finds the defaults too
    return {
        name: value
        for name, default in _DEFAULTS[type(section)].items()
        if (value := getattr(section, name)) != default
    }
