"""The section `measure_options` of a study, and the names of measures."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ...engine.precision import Precision
from ...errors import SpiritlevelError, brief
from ...measures.options import as_options
from .keys import (
    as_mapping,
    changed_values,
    check_keys,
    checked,
    is_scalar,
    number,
    read_values,
    readers_of,
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
class MeasureSettings:
    """The samples that are measured on, and arguments of `spiritlevel.measure`."""

    # None: all of the training data
    samples: int | None = number(int, None, "a whole number of at least 1", lambda v: v >= 1)
    batch: int = number(int, 512, "a whole number of at least 1", lambda v: v >= 1)
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
        section = as_mapping("measure_options", given)
        check_keys("measure_options", section, readers_of(cls))
        values = read_values("measure_options", section, cls)
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
        return {k: v for k, v in changed_values(self).items() if k not in STUDYS_OWN}

    def to_dict(self) -> dict[str, Any]:
        """As a run's id and the store have it."""
        return dict.fromkeys(self.nulls) | changed_values(self)


def _check_options(options: Mapping[str, Any]) -> None:
    for key, value in options.items():
        if not is_scalar(value) and not isinstance(value, list | tuple):
            raise SpiritlevelError(
                f"The study's measure_options.options.{key} must be a plain value. Got "
                f"{brief(value)}. The weights before training are given to the measures by the "
                "study itself."
            )


def _check_names(values: Mapping[str, Any]) -> None:
    head, layers = values.get("head"), values.get("layers")
    patterns = layers if isinstance(layers, list | tuple) else [layers]
    if layers is not None and not (patterns and all(isinstance(p, str) for p in patterns)):
        raise SpiritlevelError(
            "The study's measure_options.layers must be a name or pattern of layers, or a list of "
            f"them. Got {brief(layers)}."
        )
    if head is not None and not isinstance(head, str):
        raise SpiritlevelError(
            f"The study's measure_options.head must be the name of a layer. Got {brief(head)}."
        )


def check_measures(where: str, given: object) -> None:
    """Refuse anything but a list of names or patterns of measures."""
    if given is None:
        return
    if not isinstance(given, list | tuple) or not all(isinstance(m, str) for m in given):
        raise SpiritlevelError(
            f"The study's {where} must be a list of names or patterns. Got {brief(given)}. "
            "See `spiritlevel list`."
        )
    if not given:
        raise SpiritlevelError(
            f"The study's {where} must name at least one measure. Got an empty list. "
            "Leave the key out for a sensible choice."
        )
