"""Keys and values of a study as a person writes them: refused with the likely meaning if wrong.

A section of the settings is a frozen dataclass. Each of its fields is made here, with its default
and the check that a value given for it must pass:

    epochs: int = number(int, 20, "a whole number of at least 1", lambda v: v >= 1)
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, cast

from spiritlevel.ground.errors import SpiritlevelError, brief, suggestion
from spiritlevel.ground.files import as_path

CHECK = "check"  # where a dataclass field holds its check,
WRITE = "write"  # and how its value is written, where that is not as it is
NULLS, ARGUMENTS = "nulls", "arguments"  # fields that are several keys


def check_keys(where: str, given: Mapping[str, Any], allowed: Iterable[str]) -> None:
    """Refuse the first key that is not allowed."""
    allowed = list(allowed)
    for key in given:
        if key not in allowed:
            raise SpiritlevelError(
                f"The study's {where} has an unknown key {key!r}.{suggestion(key, allowed)} "
                f"Known here: {', '.join(allowed)}."
            )


def must_be(passed: bool, where: str, value: object, wanted: str, then: str = "") -> None:
    """Refuse a value of a study that did not pass: what it must be, what came, what to do next."""
    if not passed:
        text = f"The study's {where} must be {wanted}. Got {brief(value)}. {then}"
        raise SpiritlevelError(text.rstrip())


def as_mapping(where: str, value: object) -> dict[str, Any]:
    """A section of a study; nothing at all is an empty section."""
    if value is None:
        return {}
    fits = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    must_be(fits, where, value, "a mapping of names to values")
    return dict(cast("Mapping[str, Any]", value))


def as_named(where: str, given: object) -> dict[str, Any]:
    """A section that is a name alone, such as `mlp`, or a mapping with a name and more."""
    values = {"name": given} if isinstance(given, str) else as_mapping(where, given)
    named = isinstance(values.get("name"), str) and bool(values["name"])
    must_be(named, where, given, "a name, or a mapping with a 'name' and options")
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
class ValueCheck:
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
        must_be(fits and self.allowed(number), where, value, self.need)
        return number


class ListCheck(ValueCheck):
    """A list of numbers, each checked like a single one."""

    def read(self, where: str, value: object) -> Any:
        """A tuple, each number in its own type."""
        must_be(isinstance(value, list | tuple) and bool(value), where, value, self.need)
        numbers = cast("Sequence[object]", value)
        return tuple(super(ListCheck, self).read(where, each) for each in numbers)


class PathCheck(ValueCheck):
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
    """A field that is one of several names."""
    need = f"one of {', '.join(names)}"
    return checked(ValueCheck(str, need, lambda value: value in names), default)


def text(need: str) -> Any:
    """A field with a text that is not empty; None by default."""
    return checked(ValueCheck(str, need, bool), None)


def path(need: str) -> Any:
    """A field with a text that the system can be asked for as a path; None by default."""
    return checked(PathCheck(str, need, bool), None)


def flag() -> Any:
    """A field that is true or false; false by default."""
    return checked(ValueCheck(bool, "true or false", lambda value: True), False)


def count(default: int | None = None, need: str = "a whole number of at least 1") -> Any:
    """A field that counts something, from one up."""
    return number(int, default, need, lambda v: v >= 1)


def positive(default: float | None = None) -> Any:
    """A field with a number above 0."""
    return number(float, default, "a number above 0", lambda v: v > 0)


def number(kind: type, default: Any, need: str, allowed: Callable[[Any], bool]) -> Any:
    """A field with a finite number within a range."""
    return checked(ValueCheck(kind, need, lambda v: math.isfinite(v) and allowed(v)), default)


def numbers(default: tuple[float, ...], need: str, allowed: Callable[[Any], bool]) -> Any:
    """A field with a list of finite numbers within a range."""
    return checked(ListCheck(float, need, lambda v: math.isfinite(v) and allowed(v)), default)


# -- whole sections ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class SettingsSection:
    """One section of a run's settings, and how a run's id and the store have it.

    A value that is its default is not written. So a key that is added to a section later leaves the
    ids of older runs as they are.
    """

    # Keys that are written even with their default, if this holds: they are as old as the ids.
    ALWAYS: ClassVar[Mapping[str, Callable[[Any], bool]]] = {}

    def to_dict(self) -> dict[str, Any]:
        """Plain types, as a person could have written them."""
        written: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if CHECK in field.metadata:
                always = self.ALWAYS.get(field.name)
                if value != field.default or (always is not None and always(self)):
                    write = field.metadata.get(WRITE)
                    written[field.name] = value if write is None else write(value)
            elif field.name == ARGUMENTS:
                written |= value
            elif field.name == NULLS:
                written |= {key: written.get(key) for key in value}
            else:
                written[field.name] = value
        return written


# By section: a study of a thousand runs asks for them several thousand times.
_READERS: dict[type, Mapping[str, Reader]] = {}


def readers_of(section: type[SettingsSection]) -> Mapping[str, Reader]:
    """The keys a person may write in this section, with what reads each."""
    if section not in _READERS:
        fields = [each for each in dataclasses.fields(section) if CHECK in each.metadata]
        _READERS[section] = {each.name: each.metadata[CHECK] for each in fields}
    return _READERS[section]


def read_section(
    where: str, given: object, section: type[SettingsSection]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A mapping with known keys alone: as it was written, and the values that it sets."""
    written = as_mapping(where, given)
    check_keys(where, written, readers_of(section))
    return written, read_values(where, written, section)


def read_values(
    where: str, given: Mapping[str, Any], section: type[SettingsSection]
) -> dict[str, Any]:
    """The given values of a section's fields, each in its own type; a null is left out."""
    return {
        key: reader.read(f"{where}.{key}", given[key])
        for key, reader in readers_of(section).items()
        if given.get(key) is not None
    }


def require_switch(
    where: str, values: Mapping[str, Any], keys: Iterable[str], switch: str, example: str
) -> None:
    """Refuse keys that mean something only with another key, if that key is not there."""
    for key in keys:
        if key in values and switch not in values:
            raise SpiritlevelError(
                f"The study's {where}.{key} has no effect without {where}.{switch}. "
                f"Add for example `{switch}: {example}`, or leave {key} out."
            )
