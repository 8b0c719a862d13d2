"""The settings of one run: complete, checked, and the same text whoever wrote them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from .._core import SpiritlevelError
from .hooks import check_interventions
from .keys import Field, as_mapping, check_keys, is_scalar, number, one_of

TRAINING: dict[str, Field] = {
    "optimizer": one_of("sgd", "adam", "adamw", default="sgd"),
    "lr": number(float, 0.1, "a number above 0", lambda v: v > 0),
    "batch_size": number(int, 32, "a whole number of at least 1", lambda v: v >= 1),
    "epochs": number(int, 20, "a whole number of at least 1", lambda v: v >= 1),
    "weight_decay": number(float, 0.0, "a number of at least 0", lambda v: v >= 0),
    "momentum": number(float, 0.0, "a number from 0 to below 1", lambda v: 0 <= v < 1),
    "dtype": one_of("float32", "float64", default="float32"),
    # A sum over more threads rounds differently, so their number belongs to the settings.
    "threads": number(int, 1, "a whole number of at least 1", lambda v: v >= 1),
}
STOP: dict[str, Field] = {
    "train_loss": number(float, None, "a number above 0", lambda v: v > 0),
    "train_accuracy": number(float, None, "a number in (0, 1]", lambda v: 0 < v <= 1),
}
DATA = ("name", "samples", "test")
MEASURE_OPTIONS = (
    "samples",
    "method",
    "rtol",
    "confidence",
    "max_passes",
    "layers",
    "head",
    "options",
)
SAMPLES = number(int, None, "a whole number of at least 1", lambda v: v >= 1)
ID_LENGTH = 16  # hex digits: two of a million runs collide with probability 3e-8


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """Everything a run depends on. The same settings have the same id, in whatever order given."""

    model: Mapping[str, Any]
    data: Mapping[str, Any]
    training: Mapping[str, Any]
    interventions: Mapping[str, Any]
    stop: Mapping[str, float]
    measures: tuple[str, ...] | None
    measure_options: Mapping[str, Any]
    seed: int
    axes: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # the grid's part of it

    @classmethod
    def from_sections(cls, sections: Mapping[str, Any], *, seed: int, axes: Any) -> RunSettings:
        """Check every section and fill in what was left out."""
        measures = sections["measures"]
        return cls(
            model=_named("model", sections["model"]),
            data=_data(sections["data"]),
            training=_training(sections["training"]),
            interventions=_interventions(sections["interventions"]),
            stop=_read("stop", sections["stop"], STOP),
            measures=None if measures is None else tuple(measures),
            measure_options=_measure_options(sections["measure_options"]),
            seed=seed,
            axes=dict(axes),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain types; without `axes`, which only say where in a grid these settings came from."""
        found = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del found["axes"]
        return json.loads(json.dumps(found))

    @property
    def canonical(self) -> str:
        """The settings as one text, keys in order."""
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False)

    @property
    def id(self) -> str:
        """Short, stable, and usable as a file name."""
        return hashlib.sha256(self.canonical.encode()).hexdigest()[:ID_LENGTH]

    @classmethod
    def from_json(cls, settings: str, axes: str) -> RunSettings:
        """What a store keeps of a run."""
        found = json.loads(settings)
        if found["measures"] is not None:
            found["measures"] = tuple(found["measures"])
        return cls(**found, axes=json.loads(axes))


def _read(where: str, given: object, fields: Mapping[str, Field]) -> dict[str, Any]:
    values = as_mapping(where, given)
    check_keys(where, values, fields)
    return {
        key: fields[key].read(f"{where}.{key}", value)
        for key, value in values.items()
        if value is not None
    }


def _training(given: object) -> dict[str, Any]:
    values = {name: field.default for name, field in TRAINING.items()}
    values |= _read("training", given, TRAINING)
    if values["optimizer"] != "sgd":
        del values["momentum"]  # it has no such number: two values would be one run under two names
    return values


def _interventions(given: object) -> dict[str, Any]:
    values = as_mapping("interventions", given)
    check_interventions(values)
    # One that is left out by a 0 is the same run as one that is not named.
    return {
        key: value if isinstance(value, str) else float(value)
        for key, value in values.items()
        if value
    }


def _named(where: str, given: object) -> dict[str, Any]:
    """`mlp`, or a mapping with its name and options."""
    values = {"name": given} if isinstance(given, str) else as_mapping(where, given)
    if not isinstance(values.get("name"), str) or not values["name"]:
        raise SpiritlevelError(
            f"The study's {where} must be a name, or a mapping with a 'name' and options. "
            f"Got {given!r}."
        )
    return values


def _data(given: object) -> dict[str, Any]:
    values = _named("data", given)
    check_keys("data", values, DATA)
    if values.get("samples") is not None:
        values["samples"] = SAMPLES.read("data.samples", values["samples"])
    if not isinstance(values.get("test", ""), str):
        raise SpiritlevelError(
            f"The study's data.test must be the name or path of the test data. "
            f"Got {values['test']!r}."
        )
    return values


def _measure_options(given: object) -> dict[str, Any]:
    values = as_mapping("measure_options", given)
    check_keys("measure_options", values, MEASURE_OPTIONS)
    if values.get("samples") is not None:
        values["samples"] = SAMPLES.read("measure_options.samples", values["samples"])
    options = as_mapping("measure_options.options", values.get("options"))
    for key, value in options.items():
        if not is_scalar(value) and not isinstance(value, list | tuple):
            raise SpiritlevelError(
                f"The study's measure_options.options.{key} must be a plain value. Got {value!r}. "
                "The weights before training are given to the measures by the study itself."
            )
    return values
