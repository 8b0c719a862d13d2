"""Records to JSON and back, by the fields of their classes.

A file may be cut short, edited, or written by another program. What is read from it has the types
of the record that it becomes, so nothing that comes later meets a text where it counts on a number;
or an error says where and what.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeVar, Union

from ..ground.errors import SpiritlevelError, brief

NONFINITE = ("nan", "inf", "-inf")  # as texts: JSON has no such numbers
LARGEST = 2**63  # of whole numbers: beyond it they cannot become floats or tensors
SETTINGS: dict[str, Any] = {
    "num_samples": int,
    "num_outputs": int,
    "confidence": float,
    "sizes": Mapping[str, int],
    "matrix": str,
    "which": str,
    "left_out": Mapping[str, str],
    "frozen": str,
    "subject": Mapping[str, Any],
}
# What a file with another content than was written may lead to; RuntimeError is torch's.
BY_CONTENT = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
# For the metadata of a field: it is in no file, or only if there is something in it.
UNSAVED, IF_ANY = {"saved": "never"}, {"saved": "if any"}
Record = TypeVar("Record")
PlainRecord = TypeVar("PlainRecord", bound="Plain")
SavedRecord = TypeVar("SavedRecord", bound="Saved")


class Misread(SpiritlevelError):
    """A value in a file is not what was written there; the text says where and why."""


class Plain:
    """A dataclass that becomes plain types and is read back, by its fields and their types."""

    CALLED: ClassVar[str]  # in errors, as in "the landscape"
    EXTENDED: ClassVar[bool] = False  # files hold more, which follows from the fields

    def to_dict(self) -> dict[str, Any]:
        """Plain types only, ready for JSON; numbers that are not finite become texts."""
        return {
            _key(field): to_plain(getattr(self, field.name))
            for field in _saved(type(self))
            if field.metadata != IF_ANY or getattr(self, field.name)
        }

    @classmethod
    def from_dict(cls: type[PlainRecord], data: Mapping[str, Any]) -> PlainRecord:
        """The inverse of `to_dict`."""
        return _read_record(cls, data)

    def check_parts(self) -> None:
        """Refuse parts that do not go together: they were edited, or damaged."""


class Saved(Plain):
    """A record with a file format of its own."""

    FORMAT: ClassVar[str]
    UNNAMED: ClassVar[bool] = False  # earlier versions wrote files that do not name the format

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain types, ready for JSON."""
        return {"format": self.FORMAT} | super().to_dict()

    def to_json(self, *, indent: int | None = 2) -> str:
        """As JSON text; `from_json` of this class reads it back."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    @classmethod
    def from_dict(cls: type[SavedRecord], data: Mapping[str, Any]) -> SavedRecord:
        """The inverse of `to_dict`."""
        given = dict(read_as(Mapping[str, Any], data, cls.CALLED))
        if (form := given.pop("format", cls.FORMAT)) != cls.FORMAT:
            raise Misread(f"{cls.CALLED}'s format is {brief(form)}")
        return _read_record(cls, given)

    @classmethod
    def from_json(cls: type[SavedRecord], text: str) -> SavedRecord:
        """Read what `to_json` wrote."""
        return read_json(text, cls.__name__, cls.FORMAT, cls.from_dict, unnamed=cls.UNNAMED)


def to_plain(value: Any) -> Any:
    """The same in JSON's types, records in it as well.

    >>> to_plain({"a": (1.5, math.nan)})
    {'a': [1.5, 'nan']}
    """
    if isinstance(value, Plain):
        return value.to_dict()
    if isinstance(value, float):
        return to_json_float(value)
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: to_plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(inner) for inner in value]
    return value


def to_json_float(value: float | None) -> float | str | None:
    """JSON has no nan or inf; a string survives every parser and `float` reads it back."""
    return value if value is None or math.isfinite(value) else str(value)


def read_json(
    text: str, what: str, form: str, build: Callable[[Any], Record], *, unnamed: bool = False
) -> Record:
    """What `to_json` of the class `what` wrote, made by `build` from the parsed text.

    `unnamed` says that earlier versions wrote files which do not name their format.
    """
    try:
        data = read_as(Mapping[str, Any], parse_json(text), "the content")
        if data.get("format", form if unnamed else None) != form:
            raise Misread(f"its format is {brief(data.get('format'))}")
        return build(data)
    except BY_CONTENT as error:
        cause = str(error) if isinstance(error, SpiritlevelError) else repr(error)
        raise SpiritlevelError(
            f"The 'text' argument of {what}.from_json must be what {what}.to_json wrote (format "
            f"{form!r}). Reading it failed with: {cause.rstrip('.')}. Write it again with "
            f"{what}.to_json()."
        ) from error


def parse_json(text: object) -> Any:
    """The content of a JSON text; no key may occur twice, and no number be NaN or too large."""
    if not isinstance(text, str | bytes | bytearray):
        raise Misread(f"the text is of type {type(text).__name__}")
    try:
        return json.loads(
            text,
            object_pairs_hook=_without_repeats,
            parse_constant=_refuse,
            parse_float=_finite,
        )
    except RecursionError:
        raise Misread("it is nested too deeply") from None
    except Misread:
        raise
    except ValueError as error:  # not JSON, not UTF-8, or a number with thousands of digits
        raise Misread(f"it is not complete JSON: {error}") from error


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        keys = [key for key, _ in pairs]
        raise Misread(f"the key {next(k for k in keys if keys.count(k) > 1)!r} occurs twice")
    return content


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise Misread(f"it contains {brief(digits)}, which is too large for a number of 64 bits")
    return number


def _refuse(constant: str) -> Any:
    raise Misread(f"it contains {constant}, which is not JSON")


def read_fields(kind: type[Record], data: object, place: str, **ready: Any) -> Record:
    """A dataclass from a mapping of its fields; `ready` are those that were read before."""
    return _read_fields(kind, data, place, ready)


def _read_record(kind: type[PlainRecord], data: object) -> PlainRecord:
    record = _read_fields(kind, data, kind.CALLED, {}, extended=kind.EXTENDED)
    record.check_parts()
    return record


def _read_fields(
    kind: type[Record],
    data: object,
    place: str,
    ready: Mapping[str, Any],
    *,
    extended: bool = False,
) -> Record:
    given = read_as(Mapping[str, Any], data, place)
    fields = {_key(field): field for field in _saved(kind) if field.name not in ready}
    unknown = [key for key in given if key not in fields and key not in ready]
    if unknown and not extended:
        raise Misread(f"{place} has {brief(unknown[0])}, which nothing here is called")
    hints = typing.get_type_hints(kind)
    values = dict(ready)
    for key, field in fields.items():
        if key in given:
            at = f"{place}'s {key}" if extended else f"{place}.{key}"
            values[field.name] = read_as(hints[field.name], given[key], at)
        elif field.default is field.default_factory is dataclasses.MISSING:
            raise Misread(f"{place} has no {key!r}")
    return kind(**values)


def _saved(kind: type[Any]) -> list[dataclasses.Field[Any]]:
    """The fields that are written, in their order."""
    return [field for field in dataclasses.fields(kind) if field.init and field.metadata != UNSAVED]


def _key(field: dataclasses.Field[Any]) -> str:
    """What a field is called in files."""
    return str(field.metadata.get("key", field.name))


def read_settings(data: object, place: str, *, need: str | None = "num_samples") -> dict[str, Any]:
    """Settings of a result; the ones that are calculated with have their types."""
    settings = dict(read_as(Mapping[str, Any], data, place))
    if need is not None and need not in settings:
        raise Misread(f"{place} have no {need!r}")
    for key, kind in SETTINGS.items():
        if key in settings:
            settings[key] = read_as(kind, settings[key], f"{place}.{key}")
    for key in ("mean_loss", "accuracy"):
        read_as(float | None, settings.get("subject", {}).get(key), f"{place}.subject.{key}")
    _checked(settings.get("num_samples", 1) >= 1, settings, place, "of at least one sample")
    _checked(0 < settings.get("confidence", 0.5) < 1, settings, place, "of a confidence below 1")
    return settings


def read_as(kind: Any, value: Any, place: str) -> Any:
    """The value as this type; `kind` is written as in an annotation.

    >>> read_as(tuple[float, ...] | None, [1, "inf"], "losses")
    (1.0, inf)
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return read_as(next(a for a in arguments if a is not type(None)), value, place)
    if origin is Literal:
        return _checked(value in arguments, value, place, f"one of {', '.join(arguments)}")
    if origin in (tuple, list, Sequence):
        return _read_sequence(origin, arguments, value, place)
    if origin in (dict, Mapping):
        is_mapping = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
        _checked(is_mapping, value, place, "a mapping of names to values")
        return {k: read_as(arguments[1], v, f"{place}.{k}") for k, v in value.items()}
    if isinstance(kind, type) and issubclass(kind, Plain):
        return kind.from_dict(value)
    if dataclasses.is_dataclass(kind):
        return read_fields(kind, value, place)  # type: ignore[arg-type]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        names = [each.value for each in kind]
        return kind(_checked(value in names, value, place, f"one of {', '.join(names)}"))
    return _read_plain(kind, value, place)


def _read_sequence(origin: Any, arguments: tuple[Any, ...], value: Any, place: str) -> Any:
    _checked(isinstance(value, list | tuple), value, place, "a list")
    if origin is tuple and arguments[-1] is not Ellipsis:
        _checked(len(value) == len(arguments), value, place, f"a list of {len(arguments)}")
        kinds = arguments
    else:
        kinds = (arguments[0],) * len(value)
    items = [read_as(k, v, f"{place}[{i}]") for i, (k, v) in enumerate(zip(kinds, value))]  # noqa: B905
    return items if origin is list else tuple(items)


def _read_plain(kind: Any, value: Any, place: str) -> Any:
    if kind is float:
        return _read_number(value, place)
    need = {int: "a whole number", bool: "true or false", str: "a text"}[kind]
    fits = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    if kind is int and fits:
        fits = abs(value) < LARGEST
    return _checked(fits, value, place, need)


def _read_number(value: Any, place: str) -> float:
    if isinstance(value, str) and value in NONFINITE:
        return float(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    _checked(is_number, value, place, "a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    _checked(math.isfinite(number), value, place, "a number that fits into 64 bits")
    return number


def _checked(fits: bool, value: Any, place: str, need: str) -> Any:
    if not fits:
        raise Misread(f"{place} must be {need}, and is {brief(value)}")
    return value
