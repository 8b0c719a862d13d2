"""The section `training` of a study: what each key may be, and which of them belong together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

from ...errors import SpiritlevelError
from .keys import (
    CHECK,
    WRITE,
    SettingsSection,
    ValueCheck,
    as_mapping,
    count,
    flag,
    is_scalar,
    must_be,
    number,
    numbers,
    one_of,
    positive,
    read_section,
    require_switch,
)

RADII = {"sam": 0.05, "asam": 0.5, "noise_sam": 0.05}  # usual ones: the authors', paper 001's
# Part of every id, whatever their value: they are as old as the ids.
ALWAYS = ("optimizer", "lr", "batch_size", "epochs", "weight_decay", "momentum", "dtype", "threads")


TRACE_SQUARED = "trace_squared"  # the penalty of a weight alone; see training.penalties.registry
WEIGHT = ValueCheck(float, "a number of at least 0", lambda v: math.isfinite(v) and v >= 0)
ELSEWHERE = {  # arguments of a penalty that a study has another place for
    "every": "Write it as training.every.",
    "generator": "The seed of the run determines its random numbers.",
    "model": "It is the model of the study.",
    "loss": "A study trains with cross-entropy.",
}


@dataclasses.dataclass(frozen=True)
class PenaltySettings:
    """What is added to the loss.

    `penalty: 0.1` is the weight of Tr(H²)/B. Another penalty is a mapping:
    `penalty: {name: head_kappa, weight: 0.1}`, with the arguments of that penalty.
    """

    weight: float
    name: str = TRACE_SQUARED
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(cls, where: str, given: object) -> PenaltySettings:
        """From the value of `training.penalty`; whether the name exists is checked before a run."""
        if not isinstance(given, Mapping):
            need = f"{WEIGHT.need}, or a mapping such as {{name: head_kappa, weight: 0.1}}"
            return cls(dataclasses.replace(WEIGHT, need=need).read(where, given))
        section = as_mapping(where, given)
        name, weight = section.pop("name", TRACE_SQUARED), section.pop("weight", None)
        named = isinstance(name, str) and bool(name)
        must_be(named, f"{where}.name", name, "the name of a penalty, or 'module:factory'")
        for argument, value in section.items():
            if argument in ELSEWHERE:
                raise SpiritlevelError(
                    f"The study's {where} must not contain {argument!r}. {ELSEWHERE[argument]}"
                )
            _check_plain(f"{where}.{argument}", value)
        return cls(WEIGHT.read(f"{where}.weight", weight), name, section)

    def to_value(self) -> float | dict[str, Any]:
        """As a run's id and the store have it: the shortest form that says the same."""
        if self.name == TRACE_SQUARED and not self.arguments:
            return self.weight
        return {"name": self.name, "weight": self.weight, **self.arguments}


def _check_plain(where: str, value: object) -> None:
    items = value if isinstance(value, list | tuple) else [value]
    must_be(
        all(item is None or is_scalar(item) for item in items),
        where,
        value,
        "a plain value or a list of them",
        "A factory of your own ('module:factory') can make the value from a name.",
    )


@dataclasses.dataclass(frozen=True)
class TrainingSettings(SettingsSection):
    """How a network is trained.

    What has no effect has its default: momentum without SGD, milestones and gamma without the
    schedule `step`, rho and draws without their method.
    """

    ALWAYS: ClassVar = dict.fromkeys(ALWAYS, lambda _: True) | {
        "momentum": lambda training: training.optimizer == "sgd",
        "milestones": lambda training: training.schedule == "step",
        "gamma": lambda training: training.schedule == "step",
        "rho": lambda training: training.method != "plain",
        "draws": lambda training: training.method == "noise_sam",
    }

    optimizer: str = one_of("sgd", "adam", "adamw", "rmsprop", default="sgd")
    lr: float = positive(0.1)
    batch_size: int = count(32)
    epochs: int = count(20)
    # epochs from one evaluation to the next; the last epoch and those that are measured have one
    evaluate_every: int = count(1)
    weight_decay: float = number(float, 0.0, "a number of at least 0", lambda v: v >= 0)
    momentum: float = number(float, 0.0, "a number from 0 to below 1", lambda v: 0 <= v < 1)
    dtype: str = one_of("float32", "float64", default="float32")
    # in which the steps compute; weights, evaluation and measures stay in `dtype`
    autocast: str = one_of("none", "bfloat16", default="none")
    # whether torch.compile fuses the operations of a step, which then round differently
    compile: bool = flag()
    # A sum over more threads rounds differently, so their number belongs to the settings.
    threads: int = count(1)
    schedule: str = one_of("constant", "cosine", "step", default="constant")
    milestones: tuple[float, ...] = numbers(
        (0.5, 0.75), "a list of epochs, or of shares of them below 1", lambda v: v > 0
    )
    gamma: float = positive(0.1)
    warmup: int = number(int, 0, "a whole number of epochs of at least 0", lambda v: v >= 0)
    # the norm of the whole gradient above which it is made shorter, as torch's clip_grad_norm_ does
    clip: float | None = positive()
    method: str = one_of("plain", *RADII, default="plain")
    rho: float = positive(RADII["sam"])
    draws: int = count(1)
    every: int = count(1)
    penalty: PenaltySettings | None = dataclasses.field(
        default=None, metadata={CHECK: PenaltySettings, WRITE: PenaltySettings.to_value}
    )
    norm_control: bool = flag()
    freeze: str = one_of("none", "backbone", default="none")
    lr_backbone: float | None = positive()

    @classmethod
    def read(cls, given: object) -> TrainingSettings:
        """Every value checked, and what has no effect left out."""
        _, values = read_section("training", given, cls)
        if values.get("optimizer", "sgd") != "sgd":
            values.pop("momentum", None)  # SGD's alone: two values would be one run twice
        _read_schedule(values)
        _read_method(values)
        training = cls(**values)
        if training.warmup >= training.epochs:
            raise SpiritlevelError(
                f"The study's training.warmup must be less than its epochs ({training.epochs}). "
                f"Got {training.warmup}."
            )
        if (training.method, training.penalty) != ("plain", None):
            _refuse_changed_steps(training)
        if training.freeze != "none" and training.lr_backbone is not None:
            raise SpiritlevelError(
                "The study's training.lr_backbone has no effect on a backbone that is frozen. "
                "Leave out one of freeze and lr_backbone."
            )
        return training


def _read_schedule(values: dict[str, Any]) -> None:
    require_switch("training", values, ("milestones", "gamma"), "schedule", "step")
    if values.get("schedule") != "step":
        _drop(values, "milestones", "gamma")
    elif "milestones" in values:
        values["milestones"] = tuple(sorted(values["milestones"]))


def _read_method(values: dict[str, Any]) -> None:
    require_switch("training", values, ("rho", "draws"), "method", "sam")
    method = values.get("method", "plain")
    if method == "plain":
        _drop(values, "rho")
    else:
        values.setdefault("rho", RADII[method])
    if method != "noise_sam":
        _drop(values, "draws")
    if "penalty" in values and not values["penalty"].weight:
        del values["penalty"]
    if "penalty" in values and method != "plain":
        raise SpiritlevelError(
            f"The study's training.penalty goes with method: plain. Got method {method!r}. "
            "To compare the two, make each a variant."
        )
    if method == "plain" and "penalty" not in values:
        _drop(values, "every")


def _refuse_changed_steps(training: TrainingSettings) -> None:
    """Methods and penalties differentiate the network in ways of their own."""
    for key, is_on in (("autocast", training.autocast != "none"), ("compile", training.compile)):
        if is_on:
            raise SpiritlevelError(
                f"The study's training.{key} goes with plain steps, without method and penalty. "
                "Leave it out."
            )


def _drop(values: dict[str, Any], *keys: str) -> None:
    for key in keys:
        values.pop(key, None)
