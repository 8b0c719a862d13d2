"""The settings of one run: complete, checked, and with an id that depends on nothing else."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.records.reading import parse_json, read_as

from .keys import SettingsSection, ValueCheck, check_plain
from .sections import (
    DataSettings,
    InterventionSettings,
    MeasureSettings,
    ModelSettings,
    StopSettings,
    TaskSettings,
)
from .training import TrainingSettings

EVERY = ValueCheck(int, "a whole number of at least 1", lambda v: v >= 1)
ID_LENGTH = 16  # hex digits: two of a million runs collide with probability 3e-8
READ: dict[str, Any] = {  # the sections that every run has
    "model": ModelSettings,
    "data": DataSettings,
    "training": TrainingSettings,
    "interventions": InterventionSettings,
    "stop": StopSettings,
    "measure_options": MeasureSettings,
}
LATER = ("measure_every", "epoch_measures", "task")  # fields: not in the id where they are None


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """Everything a run depends on. The same settings have the same id, in whatever order given."""

    model: ModelSettings
    data: DataSettings
    training: TrainingSettings
    interventions: InterventionSettings
    stop: StopSettings
    measures: tuple[str, ...] | None
    measure_options: MeasureSettings
    seed: int
    axes: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # its place in the grid
    measure_every: int | None = None  # epochs; None: only at the end
    epoch_measures: tuple[str, ...] | None = None  # None: the same as at the end
    task: TaskSettings | None = None  # what is done in place of training and measuring

    @classmethod
    def from_sections(cls, sections: Mapping[str, Any], *, seed: int, axes: Any) -> RunSettings:
        """Check every section and fill in what was left out."""
        read = {name: section.read(sections[name]) for name, section in READ.items()}
        _check_rule(read["stop"], read["data"])
        _check_steps(read["stop"], read["training"])
        _check_evaluated(read["stop"], read["training"])
        _check_normalized(read["data"], read["interventions"])
        every, names = _while_training(sections, read["stop"])
        measures, task = sections["measures"], sections.get("task")
        return cls(
            **read,
            measures=None if measures is None else tuple(measures),
            seed=seed,
            axes=dict(axes),
            measure_every=every,
            epoch_measures=names,
            task=None if task is None else TaskSettings.read(task),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain types; without `axes`, which only say where in a grid these settings came from."""
        settings = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name != "axes" and not (value is None and field.name in LATER):
                settings[field.name] = (
                    value.to_dict() if isinstance(value, SettingsSection) else value
                )
        return json.loads(json.dumps(settings))

    @functools.cached_property
    def canonical(self) -> str:
        """The settings as one text, keys in order."""
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False)

    @functools.cached_property
    def id(self) -> str:
        """Short, stable, and usable as a file name."""
        return hashlib.sha256(self.canonical.encode()).hexdigest()[:ID_LENGTH]

    @classmethod
    def from_json(cls, settings: str, axes: str) -> RunSettings:
        """Read the settings and the axes of a run, as a store holds them."""
        try:
            sections = read_as(Mapping[str, Any], parse_json(settings), "the settings")
            check_plain("run", sections)
            seed = read_as(int, sections["seed"], "the seed")
            where = read_as(Mapping[str, Any], parse_json(axes), "the axes")
            return cls.from_sections(sections, seed=seed, axes=where)
        except (SpiritlevelError, KeyError) as error:
            cause = str(error) if isinstance(error, SpiritlevelError) else f"there is no {error}"
            raise SpiritlevelError(
                f"The settings of a run in the store cannot be read: {cause.rstrip('.')}. They "
                "were edited or damaged, or written by a newer spiritlevel: put back a copy of "
                "the store, or pip install -U spiritlevel."
            ) from error

    def measured_at(self, epoch: int) -> bool:
        """Whether the network is measured after this epoch of training."""
        return self.measure_every is not None and epoch % self.measure_every == 0

    def evaluated_at(self, epoch: int) -> bool:
        """Whether loss and accuracy are taken after this epoch of training."""
        last, every = self.training.epochs, self.training.evaluate_every
        return epoch % every == 0 or epoch >= last or self.measured_at(epoch)


def _while_training(
    sections: Mapping[str, Any], stop: StopSettings
) -> tuple[int | None, tuple[str, ...] | None]:
    """`measure_every` and `epoch_measures`; a stop rule on flatness adds its measure."""
    every, names = sections.get("measure_every"), sections.get("epoch_measures")
    if every is not None:
        every = EVERY.read("measure_every", every)
    elif names is not None:
        raise SpiritlevelError(
            "The study's epoch_measures has no effect without measure_every. "
            "Add for example `measure_every: 1`."
        )
    elif stop.measure is not None:
        every, names = 1, (stop.measure,)
    measured: Sequence[str] | None = names if names is not None else sections["measures"]
    if stop.measure is not None and measured is not None and stop.measure not in measured:
        return every, (*measured, stop.measure)
    return every, None if names is None else tuple(names)


def _check_rule(stop: StopSettings, data: DataSettings) -> None:
    rule = stop.new_rule()
    if rule is not None and rule.needs_loss and data.validation is None:
        raise SpiritlevelError(
            f"The study's stop.rule {stop.rule!r} looks at the loss on validation data, and "
            "there is none. Add for example `validation: 0.1` to data."
        )


def _check_steps(stop: StopSettings, training: TrainingSettings) -> None:
    """Steps with SAM see displaced weights, and a penalty changes the gradient."""
    other = f"training.method {training.method!r}" if training.method != "plain" else ""
    if stop.of_gradients and training.penalty is not None:
        other = "training.penalty"
    if stop.of_steps and other:
        raise SpiritlevelError(
            "The study's stop at running_loss, gradient_norm or head_gradient looks at the loss of "
            f"plain steps. Got {other}, whose steps see something else. Stop at train_loss instead."
        )


def _check_evaluated(stop: StopSettings, training: TrainingSettings) -> None:
    """A rule counts the epochs that were evaluated."""
    if training.evaluate_every > 1 and stop.rule != "none":
        raise SpiritlevelError(
            "The study's stop.rule looks at every epoch. Got training.evaluate_every "
            f"{training.evaluate_every}. Leave it out, or stop at a level such as train_loss."
        )


def _check_normalized(data: DataSettings, interventions: InterventionSettings) -> None:
    """Changes of batches that need images in [0, 1]."""
    found = "auto_augment" if interventions.auto_augment else ""
    found = "leakage: control" if interventions.leakage == "control" else found
    if data.normalize and found:
        raise SpiritlevelError(
            f"The study's interventions.{found} needs images in [0, 1], which data.normalize "
            "changes. Leave out one of them."
        )
