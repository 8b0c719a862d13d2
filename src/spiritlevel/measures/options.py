"""Options of single measures: each is declared beside the card of a measure that reads it."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any

from .. import plugins
from ..errors import SpiritlevelError, brief, suggestion
from ..need import number, one_of, whole

SMALLEST_LENGTH, LARGEST_LENGTH = 1e-30, 1e30  # their products and powers still are numbers
is_length = number(least=SMALLEST_LENGTH, most=LARGEST_LENGTH)
A_LENGTH = f"a number from {SMALLEST_LENGTH:g} to {LARGEST_LENGTH:g}"
MOST = 1_000_000  # draws, steps and the like: more would never end


def _as_given(value: Any) -> Any:
    return value


@dataclasses.dataclass(frozen=True)
class Option:
    """What a caller may choose about a measure, such as a radius; several measures may share it.

    >>> Option("radius", 0.1, number(above=0), "a number above 0", "size of the ball").checked(-1)
    Traceback (most recent call last):
    spiritlevel.errors.SpiritlevelError: The option 'radius' must be a number above 0. Got -1. It is size of the ball; default 0.1.
    """  # noqa: E501

    name: str
    default: Any
    test: Callable[[Any], bool] = dataclasses.field(compare=False)
    wanted: str | Callable[[Any], str] = dataclasses.field(compare=False)  # after "must be"
    text: str  # what it is
    read: Callable[[Any], Any] = dataclasses.field(default=_as_given, compare=False)
    # how a value that is not plain appears in records and errors
    shown: Callable[[Any], Any] = dataclasses.field(default=_as_given, compare=False)

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or self.name.startswith("_"):
            raise SpiritlevelError(
                f"The name of an option must be a word such as 'radius'. Got {brief(self.name)}."
            )
        self.checked(self.default)

    def checked(self, given: Any) -> Any:
        """The value to measure with; raises if it is none."""
        value = self.read(given)
        if self.test(value):
            return _of_python(value)
        wanted = self.wanted if isinstance(self.wanted, str) else self.wanted(value)
        raise SpiritlevelError(
            f"The option {self.name!r} must be {wanted}. Got {brief(self.shown(given))}. It is "
            f"{self.text}; default {self.default!r}."
        )


def length(name: str, default: float, text: str) -> Option:
    """An option that is a radius, a standard deviation, or another size."""
    return Option(name, default, is_length, A_LENGTH, text)


def count(name: str, default: int, text: str, *, least: int, most: int = MOST) -> Option:
    """An option that is a number of draws, steps or the like."""
    wanted = f"a whole number of at least {least} and at most {most:,}"
    return Option(name, default, whole(least=least, most=most), wanted, text)


def word_or_length(name: str, default: str, text: str, words: Iterable[str]) -> Option:
    """An option that is one of a few words, or a size."""
    is_word = one_of(words)
    wanted = f"one of {', '.join(words)}, or {A_LENGTH}"
    return Option(name, default, lambda v: is_word(v) or is_length(v), wanted, text)


_DECLARED: dict[str, tuple[Option, str]] = {}  # each with the module of the measures that read it


def declare(option: Option, module: str) -> None:
    """Make an option known, or known anew where the module is run again."""
    before, place = _DECLARED.get(option.name, (option, module))
    if before != option and place != module:
        raise SpiritlevelError(
            f"The option {option.name!r} is declared twice, and differently: in {place} and in "
            f"{module}. Choose another name, or let the measure have the first by its name: "
            f"options=[{option.name!r}]."
        )
    _DECLARED[option.name] = option, place


def declared_options() -> dict[str, Option]:
    """Those of the measures registered so far, by name."""
    return {name: option for name, (option, _) in sorted(_DECLARED.items())}


def known_options() -> dict[str, Option]:
    """Those of all measures, also of installed packages, by name."""
    plugins.load("spiritlevel.measures")
    return declared_options()


class Options(types.SimpleNamespace):
    """Options of the measures, as keyword arguments; every card lists the options that it reads.

    >>> Options(rho=0.1).rho
    0.1
    """

    def __init__(self, **given: Any) -> None:
        known = known_options()
        _refuse_unknown("sl.Options", given, known)
        values = {name: option.default for name, option in known.items()} | given
        super().__init__(**{name: known[name].checked(value) for name, value in values.items()})

    def __getattr__(self, name: str) -> Any:
        if name not in _DECLARED:
            raise AttributeError(f"no measure has an option {name!r}")
        return _DECLARED[name][0].default  # of a measure that was registered after this was made

    def __setattr__(self, name: str, value: Any) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def as_options(given: Options | Mapping[str, Any] | None) -> Options:
    """What a user passes as options: an Options, a mapping of some of them, or None."""
    if given is None:
        return Options()
    if isinstance(given, Options):
        return given
    if not isinstance(given, Mapping):
        raise SpiritlevelError(
            "The 'options' argument must be a mapping such as {'rho': 0.1}, or sl.Options. "
            f"Got {type(given).__name__}."
        )
    _refuse_unknown("The 'options' argument", given, known_options())
    return Options(**given)


def recorded(options: Options, names: Iterable[str]) -> dict[str, Any]:
    """The named options in plain types, for the record."""
    known = declared_options()
    return {name: known[name].shown(getattr(options, name)) for name in names}


def _refuse_unknown(whose: str, given: Iterable[str], known: Mapping[str, Option]) -> None:
    for name in given:
        if name not in known:
            raise SpiritlevelError(
                f"{whose} has no option {brief(name)}.{suggestion(name, known, most=1)} Known: "
                f"{', '.join(known)}."
            )


def _of_python(value: Any) -> Any:
    """A number of numpy as one that can be written to a file."""
    if isinstance(value, int | float) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)
