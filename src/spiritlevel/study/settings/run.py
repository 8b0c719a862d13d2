"""The settings of one run: complete, checked, and the same text whoever wrote them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import SpiritlevelError
from ..runs.ending import needs_loss, read_stop
from ..runs.hooks import read_interventions
from .keys import as_mapping, check_keys, is_scalar, number, one_of, text
from .training import read_training

DATA = ("name", "samples", "test", "validation")
INIT = one_of("xavier_normal", "kaiming_uniform", "uniform", "normal", default=None)
INIT_FROM = text("the path of a checkpoint, or the folder of a study")
INIT_HEAD = one_of("keep", "fresh", default="keep")
MODEL_OWN = ("name", "init", "init_from", "init_head")  # the other keys are the factory's
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
COUNT = number(int, None, "a whole number of at least 1", lambda v: v >= 1)
VALIDATION = number(
    float,
    None,
    "a share of the training data below 1, or a whole number of samples",
    lambda v: 0 < v < 1 or (v >= 1 and v == int(v)),
)
ID_LENGTH = 16  # hex digits: two of a million runs collide with probability 3e-8
LATER = ("measure_every", "epoch_measures", "task")  # fields: not in the id where they are None


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """Everything a run depends on. The same settings have the same id, in whatever order given."""

    model: Mapping[str, Any]
    data: Mapping[str, Any]
    training: Mapping[str, Any]
    interventions: Mapping[str, Any]
    stop: Mapping[str, Any]
    measures: tuple[str, ...] | None
    measure_options: Mapping[str, Any]
    seed: int
    axes: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # the grid's part of it
    measure_every: int | None = None  # epochs; None: at the end alone
    epoch_measures: tuple[str, ...] | None = None  # None: those of the end
    task: Mapping[str, Any] | None = None  # what is done in place of training and measuring

    @classmethod
    def from_sections(cls, sections: Mapping[str, Any], *, seed: int, axes: Any) -> RunSettings:
        """Check every section and fill in what was left out."""
        measures, task = sections["measures"], sections.get("task")
        data, stop = _data(sections["data"]), read_stop(sections["stop"])
        _check_rule(stop, data)
        every, names = _while_training(sections, stop)
        return cls(
            model=_model(sections["model"]),
            data=data,
            training=read_training(sections["training"]),
            interventions=read_interventions(sections["interventions"]),
            stop=stop,
            measures=None if measures is None else tuple(measures),
            measure_options=_measure_options(sections["measure_options"]),
            seed=seed,
            axes=dict(axes),
            measure_every=every,
            epoch_measures=names,
            task=None if task is None else _named("task", task),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain types; without `axes`, which only say where in a grid these settings came from."""
        found = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del found["axes"]
        found = {k: v for k, v in found.items() if v is not None or k not in LATER}
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
        for name in ("measures", "epoch_measures"):
            if found.get(name) is not None:
                found[name] = tuple(found[name])
        return cls(**found, axes=json.loads(axes))

    def measured_at(self, epoch: int) -> bool:
        """Whether the network is measured after this epoch, apart from the end."""
        return self.measure_every is not None and epoch % self.measure_every == 0


def check_names(where: str, given: object) -> None:
    """Refuse what is no list of measures."""
    if given is None:
        return
    if not isinstance(given, list | tuple) or not all(isinstance(m, str) for m in given):
        raise SpiritlevelError(
            f"The study's {where} must be a list of names or patterns. Got {given!r}. "
            "See `spiritlevel list`."
        )
    if not given:
        raise SpiritlevelError(
            f"The study's {where} must name at least one measure. Got an empty list. "
            "Leave the key out for a sensible choice."
        )


def _while_training(
    sections: Mapping[str, Any], stop: Mapping[str, Any]
) -> tuple[int | None, tuple[str, ...] | None]:
    """How often, and what; a rule on flatness brings its own measure along."""
    every, names = sections.get("measure_every"), sections.get("epoch_measures")
    needed: str | None = stop.get("measure")
    if every is not None:
        every = COUNT.read("measure_every", every)
    elif names is not None:
        raise SpiritlevelError(
            "The study's epoch_measures says nothing without measure_every. "
            "Add for example `measure_every: 1`."
        )
    elif needed is not None:
        every, names = 1, (needed,)
    found: Sequence[str] | None = names if names is not None else sections["measures"]
    if needed is not None and found is not None and needed not in found:
        return every, (*found, needed)
    return every, None if names is None else tuple(names)


def _check_rule(stop: Mapping[str, Any], data: Mapping[str, Any]) -> None:
    if needs_loss(stop) and data.get("validation") is None:
        raise SpiritlevelError(
            f"The study's stop.rule {stop['rule']!r} looks at the loss on validation data, and "
            "there is none. Add for example `validation: 0.1` to data."
        )


def _named(where: str, given: object) -> dict[str, Any]:
    """`mlp`, or a mapping with its name and options."""
    values = {"name": given} if isinstance(given, str) else as_mapping(where, given)
    if not isinstance(values.get("name"), str) or not values["name"]:
        raise SpiritlevelError(
            f"The study's {where} must be a name, or a mapping with a 'name' and options. "
            f"Got {given!r}."
        )
    return values


def _model(given: object) -> dict[str, Any]:
    values = _named("model", given)
    for key, field in (("init", INIT), ("init_from", INIT_FROM), ("init_head", INIT_HEAD)):
        if values.get(key) is not None:
            values[key] = field.read(f"model.{key}", values[key])
        else:
            values.pop(key, None)
    if values.get("init_head") == INIT_HEAD.default or "init_from" not in values:
        values.pop("init_head", None)
    return values


def _data(given: object) -> dict[str, Any]:
    values = _named("data", given)
    check_keys("data", values, DATA)
    if values.get("samples") is not None:
        values["samples"] = COUNT.read("data.samples", values["samples"])
    if values.get("validation") is not None:
        share = VALIDATION.read("data.validation", values["validation"])
        values["validation"] = share if share < 1 else int(share)
    else:
        values.pop("validation", None)
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
        values["samples"] = COUNT.read("measure_options.samples", values["samples"])
    options = as_mapping("measure_options.options", values.get("options"))
    for key, value in options.items():
        if not is_scalar(value) and not isinstance(value, list | tuple):
            raise SpiritlevelError(
                f"The study's measure_options.options.{key} must be a plain value. Got {value!r}. "
                "The weights before training are given to the measures by the study itself."
            )
    return values
