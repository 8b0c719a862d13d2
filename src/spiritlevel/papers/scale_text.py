"""Sentences on how an experiment is scaled down, with the numbers of its study filled in.

A number that stands in the study's YAML file is not typed again: a template names it, and the text
changes when the file does. What the paper did is typed, because nothing here holds it.
"""

from __future__ import annotations

import fnmatch
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..errors import SpiritlevelError
from ..study.settings.definition import Study
from .judging.scale import library_study

VARIANTS = re.compile(r"variants(?:\[(?P<pattern>.+)\])?\.(?P<key>.+)")


class ScaleTexts(Mapping[str, str]):
    """By preset, how a study differs from its paper's experiment; "" is without a preset.

    Args:
        study: its name in the library; it is read when a text is asked for, not before.
        templates: by preset, the text with fields as `filled` takes them.
    """

    def __init__(self, study: str, templates: Mapping[str, str]) -> None:
        self._study, self._templates = study, dict(templates)

    def __getitem__(self, preset: str) -> str:
        template = self._templates[preset]
        return filled(template, library_study(self._study, preset))

    def __iter__(self) -> Iterator[str]:
        return iter(self._templates)

    def __len__(self) -> int:
        return len(self._templates)


def filled(template: str, study: Study) -> str:
    """The template with the study's settings in the place of its fields.

    Fields are `seeds` and `runs` (how many), `combinations` (runs of each seed), `variants` (their
    names), and settings by their place in the file: `data.samples`, `grid.batch_size`,
    `variants.lr` for the rates of all variants, `variants[sgd*].lr` for those of some. After a
    colon: `%` for a share in percent, and for a list `count`, `max`, or `to` for both its ends.

    >>> study = Study("small", data={"name": "digits", "samples": 1200}, grid={"lr": [0.1, 0.01]})
    >>> filled("{data.samples} images at rates of {grid.lr}, {grid.lr:count} in all", study)
    '1,200 images at rates of 0.1 and 0.01, 2 in all'
    """
    return _Filler(study).format(template)


class _Filler(string.Formatter):
    """The fields of one study; a whole field is looked up, dots and brackets included."""

    def __init__(self, study: Study) -> None:
        self._study = study

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        del args, kwargs
        return _setting(self._study, field_name), field_name

    def format_field(self, value: Any, format_spec: str) -> str:
        values = value if isinstance(value, list) else [value]
        if format_spec == "count":
            return _text(len(values))
        if format_spec == "max":
            return _text(max(values))
        if format_spec == "to":
            return f"{_text(min(values))} to {_text(max(values))}"
        if format_spec == "%":
            return _listing([f"{100 * each:g} %" for each in values])
        return _listing([_text(each) for each in values])


def _setting(study: Study, field: str) -> Any:
    if field == "seeds":
        return len(list(study.seeds))  # type: ignore[arg-type]  # a list once the study is made
    if field == "runs":
        return len(study.runs())
    if field == "combinations":
        return len(study.runs()) // _setting(study, "seeds")
    if field == "variants":
        return list(study.variants)
    values: Any
    if match := VARIANTS.fullmatch(field):
        values = _of_variants(study, match["pattern"] or "*", match["key"])
    else:
        section, _, key = field.partition(".")
        values = getattr(study, section, None)
        values = values.get(key) if isinstance(values, Mapping) else None
    if values is None or values == []:
        raise SpiritlevelError(
            f"The text on the scale of {study.name} must name settings of its study. It has none "
            f"at {field!r}. Correct the field in the experiment's `scaled_down`, or set the value "
            "in the study's YAML file."
        )
    return values


def _of_variants(study: Study, pattern: str, key: str) -> list[Any]:
    """The different values of a key, in the order of the variants whose names match."""
    values: list[Any] = []
    for name, changes in study.variants.items():
        if fnmatch.fnmatchcase(name, pattern) and key in changes and changes[key] not in values:
            values.append(changes[key])
    return values


def _text(value: Any) -> str:
    """A number in full: 20,000 and 0.00002."""
    if isinstance(value, list):
        return _listing([_text(each) for each in value])
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.10f}".rstrip("0").rstrip(".")
    return str(value)


def _listing(texts: Sequence[str]) -> str:
    *first, last = texts
    return f"{', '.join(first)} and {last}" if first else last
