"""The keys of a study's `training`: what each may be, and which of them belong together.

A key that came later is left out of a run's settings where it changes nothing, so that the ids of
older runs stay what they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import SpiritlevelError
from .keys import Field, flag, number, numbers, one_of, read_fields

RADII = {"sam": 0.05, "asam": 0.5, "noise_sam": 0.05}  # usual ones: the authors', paper 001's
MILESTONES, GAMMA = (0.5, 0.75), 0.1

ALWAYS: dict[str, Field] = {
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
WHERE_GIVEN: dict[str, Field] = {
    "schedule": one_of("constant", "cosine", "step", default="constant"),
    "milestones": numbers("a list of epochs, or of shares of them below 1", lambda v: v > 0),
    "gamma": number(float, None, "a number above 0", lambda v: v > 0),
    "warmup": number(int, 0, "a whole number of epochs of at least 0", lambda v: v >= 0),
    "method": one_of("plain", *RADII, default="plain"),
    "rho": number(float, None, "a number above 0", lambda v: v > 0),
    "draws": number(int, None, "a whole number of at least 1", lambda v: v >= 1),
    "every": number(int, None, "a whole number of at least 1", lambda v: v >= 1),
    "penalty": number(float, 0.0, "a number of at least 0", lambda v: v >= 0),
    "norm_control": flag(),
    "freeze": one_of("none", "backbone", default="none"),
    "lr_backbone": number(float, None, "a number above 0", lambda v: v > 0),
}
TRAINING = ALWAYS | WHERE_GIVEN


def read_training(given: object) -> dict[str, Any]:
    """Every value checked, what was left out filled in, what has no effect left out."""
    asked = read_fields("training", given, TRAINING)
    values = {name: field.default for name, field in ALWAYS.items()} | asked
    if values["optimizer"] != "sgd":
        del values["momentum"]  # it has no such number: two values would be one run under two names
    _schedule(values)
    _method(values)
    _parts(values)
    return values


def _schedule(values: dict[str, Any]) -> None:
    kind = values.get("schedule", "constant")
    _need(values, ("milestones", "gamma"), "schedule", "step")
    if kind == "constant":
        values.pop("schedule", None)
    if kind == "step":
        values["milestones"] = sorted(values.get("milestones", MILESTONES))
        values.setdefault("gamma", GAMMA)
    else:
        _drop(values, "milestones", "gamma")
    if not values.get("warmup"):
        values.pop("warmup", None)
    elif values["warmup"] >= values["epochs"]:
        raise SpiritlevelError(
            f"The study's training.warmup must be less than its epochs ({values['epochs']}). "
            f"Got {values['warmup']}."
        )


def _method(values: dict[str, Any]) -> None:
    method = values.get("method", "plain")
    _need(values, ("rho", "draws"), "method", "sam")
    if method == "plain":
        _drop(values, "method", "rho", "draws")
    else:
        values.setdefault("rho", RADII[method])
    if method == "noise_sam":
        values.setdefault("draws", 1)
    else:
        _drop(values, "draws")
    if not values.get("penalty"):
        values.pop("penalty", None)
    elif method != "plain":
        raise SpiritlevelError(
            f"The study's training.penalty goes with method: plain. Got method {method!r}. "
            "Compare the two with variants: each a way of its own."
        )
    if "every" in values and (values["every"] == 1 or not {"method", "penalty"} & set(values)):
        del values["every"]


def _parts(values: dict[str, Any]) -> None:
    if not values.get("norm_control"):
        values.pop("norm_control", None)
    if values.get("freeze", "none") == "none":
        values.pop("freeze", None)
    elif "lr_backbone" in values:
        raise SpiritlevelError(
            "The study's training.lr_backbone has no effect on a backbone that is frozen. "
            "Leave out one of freeze and lr_backbone."
        )


def _need(values: Mapping[str, Any], keys: tuple[str, ...], switch: str, example: str) -> None:
    """Refuse keys that only a switch gives a meaning, if nobody spoke of the switch."""
    for key in keys:
        if key in values and switch not in values:
            raise SpiritlevelError(
                f"The study's training.{key} says nothing without training.{switch}. "
                f"Add for example `{switch}: {example}`, or leave {key} out."
            )


def _drop(values: dict[str, Any], *keys: str) -> None:
    for key in keys:
        values.pop(key, None)
