"""The sections of a study but `training`, and the names of measures."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

from spiritlevel.engine.precision import Precision
from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.measures.options import as_options
from spiritlevel.training.stopping import FlatnessStopping, Rule

from .keys import (
    SettingsSection,
    as_mapping,
    as_named,
    check_keys,
    checked,
    count,
    flag,
    is_scalar,
    must_be,
    number,
    one_of,
    path,
    positive,
    read_section,
    read_values,
    readers_of,
    require_switch,
    text,
)


@dataclasses.dataclass(frozen=True)
class ModelSettings(SettingsSection):
    """Which network is trained, and from which weights it starts."""

    name: str
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of its factory
    init: str | None = one_of(
        *("xavier_normal", "kaiming_uniform", "uniform", "normal", "narrow_normal"), default=None
    )
    init_bias: str = one_of("keep", "zero", default="keep")
    init_from: str | None = path("the path of a checkpoint, or the folder of a study")
    init_head: str = one_of("keep", "fresh", default="keep")

    @classmethod
    def read(cls, given: object) -> ModelSettings:
        """From a name, or a mapping; the keys that are not ours are the factory's arguments."""
        section = as_named("model", given)
        values = read_values("model", section, cls)
        if "init_from" not in values:
            values.pop("init_head", None)
        ours = ("name", *readers_of(cls))
        arguments = {key: value for key, value in section.items() if key not in ours}
        return cls(section["name"], arguments, **values)


@dataclasses.dataclass(frozen=True)
class DataSettings(SettingsSection):
    """What is trained and tested on."""

    name: str
    samples: int | None = count()  # None: all
    test_samples: int | None = count()  # None: all
    test: str | None = text("the name or path of the test data")  # None: the data's test part
    validation: float | int | None = number(
        float,
        None,
        "a share of the training data below 1, or a whole number of samples",
        lambda v: 0 < v < 1 or (v >= 1 and v == int(v)),
    )
    normalize: bool = flag()  # to mean 0 and deviation 1 of each channel of the training data
    nulls: tuple[str, ...] = ()  # keys written as null, which the ids of older runs hold

    @classmethod
    def read(cls, given: object) -> DataSettings:
        """From a name, or a mapping."""
        section = as_named("data", given)
        check_keys("data", section, ("name", *readers_of(cls)))
        values = read_values("data", section, cls)
        if values.get("validation", 0) >= 1:
            values["validation"] = int(values["validation"])
        nulls = ("samples",) if section.get("samples", 1) is None else ()
        return cls(section["name"], **values, nulls=nulls)


@dataclasses.dataclass(frozen=True)
class TaskSettings(SettingsSection):
    """What a run does in place of training and measuring."""

    name: str
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(cls, given: object) -> TaskSettings:
        """From a name, or a mapping; the keys but the name are the task's arguments."""
        section = as_named("task", given)
        return cls(section.pop("name"), section)


COMPANIONS = {  # keys that mean something only with another one
    "label_noise_kind": "label_noise",
    "leakage_patches": "leakage",
    "leakage_size": "leakage",
    "mask_layers": "mask",
    "mask_place": "mask",
    "bias_layer": "bias_shift",
}


def _strength() -> Any:
    return number(float, 0.0, "a number of at least 0, or false", lambda v: v >= 0)


def _pixels() -> Any:
    # A float although it is whole: the ids of older runs were made with 4.0.
    need = "a whole number of pixels of at least 0, or false"
    return number(float, 0.0, need, lambda v: v >= 0 and v.is_integer())


@dataclasses.dataclass(frozen=True)
class InterventionSettings(SettingsSection):
    """Changes to labels, inputs, batches, steps and the network; by default none."""

    label_noise: float = _strength()
    label_noise_kind: str = one_of("replace", "shuffle", default="replace")
    leakage: str | None = one_of("class", "control", default=None)
    leakage_patches: str | None = text("the name or path of the images the patches are made of")
    leakage_size: int | None = count()
    crop_flip: float = _pixels()
    crop: float = _pixels()
    auto_augment: str | None = text("the name of a policy, or false")
    input_noise: float = _strength()
    mixup: float = _strength()
    mask: float = number(float, 0.0, "a number from 0 to below 1, or false", lambda v: 0 <= v < 1)
    mask_layers: str | None = text("a name or pattern of layers")
    mask_place: str = one_of("convolution", "norm", default="convolution")
    bias_shift: float = number(float, 0.0, "a number, or false", math.isfinite)
    bias_layer: str | None = text("the name of a layer")
    batch_cycles: int = count(1, "a whole number of at least 1, or false")

    @classmethod
    def read(cls, given: object) -> InterventionSettings:
        """Check every strength; 0 or false is the same as leaving the key out."""
        section = as_mapping("interventions", given)
        # 0 == False in Python: both switch an intervention off.
        switched_on = {key: None if value == 0 else value for key, value in section.items()}
        _, values = read_section("interventions", switched_on, cls)
        for key, main in COMPANIONS.items():
            if values.get(key, getattr(cls, key)) != getattr(cls, key) and main not in section:
                raise SpiritlevelError(
                    f"The study's interventions.{key} has no effect without interventions.{main}. "
                    f"Add {main}, or leave {key} out."
                )
            if main not in values:
                values.pop(key, None)
        if {"mask_layers", "mask_place"} <= set(values):
            raise SpiritlevelError(
                "The study's interventions.mask_place chooses the layers, and so does "
                "interventions.mask_layers. Leave one out."
            )
        if {"crop", "crop_flip"} <= set(values):
            raise SpiritlevelError(
                "The study's interventions.crop moves images as interventions.crop_flip does, "
                f"which mirrors them too. Got both, {values['crop']:g} and "
                f"{values['crop_flip']:g}: leave one out."
            )
        return cls(**values)


RULES: tuple[Rule, ...] = ("loss", "flatness", "both", "trend")
FLATNESS = "head.kappa"  # what a rule on flatness looks at, as in paper 000
AT_LEAST = "train_accuracy"  # of the levels; the others are reached from above
LEVELS = ("train_loss", "train_accuracy", "running_loss", "gradient_norm", "head_gradient")
OF_THE_RULE = ("patience", "tolerance", "measure")


@dataclasses.dataclass(frozen=True)
class StopSettings(SettingsSection):
    """A level of training that ends it, or a rule on what was seen; by default neither.

    The numbers of a rule are those of paper 000, section 5.6, where the study gives none. `measure`
    is None where there is no rule on flatness.
    """

    ALWAYS: ClassVar = {
        "patience": lambda stop: stop.rule != "none",
        "tolerance": lambda stop: stop.measure is not None,
    }

    train_loss: float | None = positive()
    train_accuracy: float | None = number(float, None, "a number in (0, 1]", lambda v: 0 < v <= 1)
    # the mean over the batches of an epoch, each before its step: of their losses,
    running_loss: float | None = positive()
    # and of their gradients: its Euclidean norm, and the largest entry for the head's weights
    gradient_norm: float | None = positive()
    head_gradient: float | None = positive()
    rule: str = one_of("none", *RULES, default="none")
    patience: int = count(10)
    tolerance: float = positive(0.02)
    measure: str | None = text("the name of a measure")

    @classmethod
    def read(cls, given: object) -> StopSettings:
        """Every value checked; without a rule its numbers are left out."""
        _, values = read_section("stop", given, cls)
        require_switch("stop", values, OF_THE_RULE, "rule", "trend")
        stop = cls(**values)
        rule = stop.new_rule()  # refuses numbers that do not suit the rule
        if rule is None:
            return cls(**{key: value for key, value in values.items() if key in LEVELS})
        if rule.needs_flatness:
            return dataclasses.replace(stop, measure=stop.measure or FLATNESS)
        return dataclasses.replace(stop, tolerance=cls.tolerance, measure=None)

    @property
    def of_gradients(self) -> bool:
        """Whether an end depends on the gradients of the steps."""
        return self.gradient_norm is not None or self.head_gradient is not None

    @property
    def of_steps(self) -> bool:
        """Whether an end depends on what was seen in the steps of an epoch."""
        return self.running_loss is not None or self.of_gradients

    def new_rule(self) -> FlatnessStopping | None:
        """The rule, to be told of every epoch; None without one."""
        if self.rule == "none":
            return None
        return FlatnessStopping(
            cast("Rule", self.rule), patience=self.patience, tolerance=self.tolerance
        )


def criterion(stop: Mapping[str, Any]) -> str:
    """What a training must come to, in words; "" where only its epochs or a rule end it.

    >>> criterion({"train_loss": 0.01}), criterion({"rule": "loss"})
    ('a training loss of at most 0.01', '')
    """
    said = [
        f"a {name.replace('_', ' ').replace('train ', 'training ')} of at "
        f"{'least' if name == AT_LEAST else 'most'} {stop[name]:g}"
        for name in LEVELS
        if stop.get(name) is not None
    ]
    return " or ".join(said)


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
