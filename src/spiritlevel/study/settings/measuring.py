"""The section `measure_options` of a study, and the names of measures."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ...engine.precision import Precision
from ...errors import SpiritlevelError
from ...measures.options import as_options
from .keys import (
    SettingsSection,
    as_mapping,
    checked,
    count,
    is_scalar,
    must_be,
    read_section,
)

PRECISION = tuple(field.name for field in dataclasses.fields(Precision))
STUDYS_OWN = ("samples", "batch", "options")


class _AsWritten:
    """Reads a value as it is: an id holds the number 1 where a study says 1, and not 1.0."""

    def read(self, where: str, value: object) -> object:
        return value


def _as_written() -> Any:
    return checked(_AsWritten(), None)


@dataclasses.dataclass(frozen=True)
class MeasureSettings(SettingsSection):
    """The samples that are measured on, and arguments of `spiritlevel.measure`."""

    # None: all of the training data
    samples: int | None = count()
    batch: int = count(512)
    method: str | None = _as_written()
    rtol: float | None = _as_written()
    confidence: float | None = _as_written()
    max_passes: int | None = _as_written()
    layers: str | Sequence[str] | None = _as_written()
    head: str | None = _as_written()
    options: Mapping[str, Any] | None = _as_written()
    nulls: tuple[str, ...] = ()  # keys written as null, which the ids of older runs hold

    @classmethod
    def read(cls, given: object) -> MeasureSettings:
        """Refuses what `spiritlevel.measure` would refuse whatever the network is."""
        section, values = read_section("measure_options", given, cls)
        _check_options(as_mapping("measure_options.options", section.get("options")))
        try:
            Precision(**{key: section[key] for key in PRECISION if key in section})
            as_options(section.get("options"))
        except SpiritlevelError as error:
            raise SpiritlevelError(
                f"The study's measure_options cannot be used: {error}"
            ) from error
        _check_names(values)
        nulls = tuple(sorted(key for key, value in section.items() if value is None))
        return cls(**values, nulls=nulls)

    @property
    def arguments(self) -> dict[str, Any]:
        """What is handed to `spiritlevel.measure`; the study itself sees to the rest."""
        return {k: v for k, v in self.to_dict().items() if k not in STUDYS_OWN and v is not None}


def _check_options(options: Mapping[str, Any]) -> None:
    for key, value in options.items():
        must_be(
            is_scalar(value) or isinstance(value, list | tuple),
            f"measure_options.options.{key}",
            value,
            "a plain value",
            "The weights before training are given to the measures by the study itself.",
        )


def _check_names(values: Mapping[str, Any]) -> None:
    head, layers = values.get("head"), values.get("layers")
    listed = bool(layers) and _are_names(layers)
    wanted = "a name or pattern of layers, or a list of them"
    named = layers is None or isinstance(layers, str) or listed
    must_be(named, "measure_options.layers", layers, wanted)
    one = head is None or isinstance(head, str)
    must_be(one, "measure_options.head", head, "the name of a layer")


def check_measures(where: str, given: object) -> None:
    """Refuse anything but a list of names or patterns of measures."""
    if given is None:
        return
    listed = _are_names(given)
    must_be(listed, where, given, "a list of names or patterns", "See `spiritlevel list`.")
    if not given:
        raise SpiritlevelError(
            f"The study's {where} must name at least one measure. Got an empty list. "
            "Leave the key out for a sensible choice."
        )


def _are_names(given: object) -> bool:
    return isinstance(given, list | tuple) and all(isinstance(each, str) for each in given)
