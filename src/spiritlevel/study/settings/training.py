"""The section `training` of a study: what each key may be, and which of them belong together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from ...errors import SpiritlevelError, brief
from .keys import (
    CHECK,
    Check,
    as_mapping,
    changed_values,
    check_keys,
    flag,
    is_scalar,
    number,
    numbers,
    one_of,
    read_values,
    readers_of,
)

RADII = {"sam": 0.05, "asam": 0.5, "noise_sam": 0.05}  # usual ones: the authors', paper 001's
# Part of every id, whatever their value: they are as old as the ids.
ALWAYS = ("optimizer", "lr", "batch_size", "epochs", "weight_decay", "momentum", "dtype", "threads")


TRACE_SQUARED = "trace_squared"  # the penalty of a weight alone; see training.penalties.registry
WEIGHT = Check(float, "a number of at least 0", lambda v: math.isfinite(v) and v >= 0)
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
        if not isinstance(name, str) or not name:
            raise SpiritlevelError(
                f"The study's {where}.name must be the name of a penalty, or 'module:factory'. "
                f"Got {brief(name)}."
            )
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
    if not all(item is None or is_scalar(item) for item in items):
        raise SpiritlevelError(
            f"The study's {where} must be a plain value or a list of them. Got {brief(value)}. A "
            "factory of your own ('module:factory') can make the value from a name."
        )


@dataclasses.dataclass(frozen=True)
class TrainingSettings:
    """How a network is trained.

    What has no effect has its default: momentum without SGD, milestones and gamma without the
    schedule `step`, rho and draws without their method.
    """

    optimizer: str = one_of("sgd", "adam", "adamw", "rmsprop", default="sgd")
    lr: float = number(float, 0.1, "a number above 0", lambda v: v > 0)
    batch_size: int = number(int, 32, "a whole number of at least 1", lambda v: v >= 1)
    epochs: int = number(int, 20, "a whole number of at least 1", lambda v: v >= 1)
    # epochs from one evaluation to the next; the last epoch and those that are measured have one
    evaluate_every: int = number(int, 1, "a whole number of at least 1", lambda v: v >= 1)
    weight_decay: float = number(float, 0.0, "a number of at least 0", lambda v: v >= 0)
    momentum: float = number(float, 0.0, "a number from 0 to below 1", lambda v: 0 <= v < 1)
    dtype: str = one_of("float32", "float64", default="float32")
    # in which the steps compute; weights, evaluation and measures stay in `dtype`
    autocast: str = one_of("none", "bfloat16", default="none")
    # whether torch.compile fuses the operations of a step, which then round differently
    compile: bool = flag()
    # A sum over more threads rounds differently, so their number belongs to the settings.
    threads: int = number(int, 1, "a whole number of at least 1", lambda v: v >= 1)
    schedule: str = one_of("constant", "cosine", "step", default="constant")
    milestones: tuple[float, ...] = numbers(
        (0.5, 0.75), "a list of epochs, or of shares of them below 1", lambda v: v > 0
    )
    gamma: float = number(float, 0.1, "a number above 0", lambda v: v > 0)
    warmup: int = number(int, 0, "a whole number of epochs of at least 0", lambda v: v >= 0)
    # the norm of the whole gradient above which it is made shorter, as torch's clip_grad_norm_ does
    clip: float | None = number(float, None, "a number above 0", lambda v: v > 0)
    method: str = one_of("plain", *RADII, default="plain")
    rho: float = number(float, RADII["sam"], "a number above 0", lambda v: v > 0)
    draws: int = number(int, 1, "a whole number of at least 1", lambda v: v >= 1)
    every: int = number(int, 1, "a whole number of at least 1", lambda v: v >= 1)
    penalty: PenaltySettings | None = dataclasses.field(
        default=None, metadata={CHECK: PenaltySettings}
    )
    norm_control: bool = flag()
    freeze: str = one_of("none", "backbone", default="none")
    lr_backbone: float | None = number(float, None, "a number above 0", lambda v: v > 0)

    @classmethod
    def read(cls, given: object) -> TrainingSettings:
        """Every value checked, and what has no effect left out."""
        section = as_mapping("training", given)
        check_keys("training", section, readers_of(cls))
        values = read_values("training", section, cls)
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

    def to_dict(self) -> dict[str, Any]:
        """As a run's id and the store have it."""
        names = [name for name in ALWAYS if name != "momentum" or self.optimizer == "sgd"]
        names += ["milestones", "gamma"] if self.schedule == "step" else []
        names += ["rho"] if self.method != "plain" else []
        names += ["draws"] if self.method == "noise_sam" else []
        values = {name: getattr(self, name) for name in names} | changed_values(self)
        if self.penalty is not None:
            values["penalty"] = self.penalty.to_value()
        return values


def _read_schedule(values: dict[str, Any]) -> None:
    _require_switch(values, ("milestones", "gamma"), "schedule", "step")
    if values.get("schedule") != "step":
        _drop(values, "milestones", "gamma")
    elif "milestones" in values:
        values["milestones"] = tuple(sorted(values["milestones"]))


def _read_method(values: dict[str, Any]) -> None:
    _require_switch(values, ("rho", "draws"), "method", "sam")
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


def _require_switch(
    values: Mapping[str, Any], keys: tuple[str, ...], switch: str, example: str
) -> None:
    """Refuse keys that mean something only with another key, if that key is not there."""
    for key in keys:
        if key in values and switch not in values:
            raise SpiritlevelError(
                f"The study's training.{key} has no effect without training.{switch}. "
                f"Add for example `{switch}: {example}`, or leave {key} out."
            )


def _drop(values: dict[str, Any], *keys: str) -> None:
    for key in keys:
        values.pop(key, None)
