"""When training ends: at the last epoch, at a level of training, or by a rule on what was seen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import SpiritlevelError
from ...training.stopping import FlatnessStopping
from ..settings.keys import Field, number, one_of, read_fields, text
from .results import EpochRow, MeasurementRow

DIVERGED = "diverged"
RULES = ("loss", "flatness", "both", "trend")
RULE_DEFAULTS = {"patience": 10, "tolerance": 0.02}  # of paper 000, section 5.6
FLATNESS = "head.kappa"  # of paper 000 too
STOP: dict[str, Field] = {
    "train_loss": number(float, None, "a number above 0", lambda v: v > 0),
    "train_accuracy": number(float, None, "a number in (0, 1]", lambda v: 0 < v <= 1),
    "rule": one_of("none", *RULES, default="none"),
    "patience": number(int, None, "a whole number of at least 1", lambda v: v >= 1),
    "tolerance": number(float, None, "a number above 0", lambda v: v > 0),
    "measure": text("the name of a measure"),
}
OF_THE_RULE = ("patience", "tolerance", "measure")


def read_stop(given: object) -> dict[str, Any]:
    """The section `stop`: a rule comes with all of its numbers, no rule with none of them."""
    values = read_fields("stop", given, STOP)
    named = [key for key in OF_THE_RULE if key in values]
    if named and "rule" not in values:
        raise SpiritlevelError(
            f"The study's stop.{named[0]} says nothing without stop.rule. "
            f"Add for example `rule: trend`, or leave {named[0]} out."
        )
    if values.get("rule", "none") == "none":
        return {key: values[key] for key in ("train_loss", "train_accuracy") if key in values}
    values = RULE_DEFAULTS | values
    rule = _stopping(values)  # refuses numbers that do not suit the rule
    if rule.needs_flatness:
        values.setdefault("measure", FLATNESS)
    else:
        del values["tolerance"]
        values.pop("measure", None)
    return values


def needs_loss(stop: Mapping[str, Any]) -> bool:
    """Whether the rule looks at the validation loss."""
    return "rule" in stop and _stopping(stop).needs_loss


def _stopping(stop: Mapping[str, Any]) -> FlatnessStopping:
    numbers = {key: stop[key] for key in RULE_DEFAULTS if key in stop}
    return FlatnessStopping(stop["rule"], **numbers)


class Ending:
    """Told of every epoch of one run, it says when and why training ends."""

    def __init__(self, stop: Mapping[str, Any], epochs: int) -> None:
        self._stop, self._epochs = stop, epochs
        self._rule = _stopping(stop) if "rule" in stop else None

    def after(self, row: EpochRow, measured: Sequence[MeasurementRow] | None) -> str:
        """Why training ends after this epoch; "" if it goes on.

        `measured` is None for an epoch at which nothing was measured; a rule on flatness does not
        count such epochs.
        """
        if not math.isfinite(row.train_loss):
            return DIVERGED
        if row.train_loss <= self._stop.get("train_loss", -math.inf):
            return "train_loss"
        if row.train_accuracy >= self._stop.get("train_accuracy", math.inf):
            return "train_accuracy"
        if self._met(row, measured):
            return f"{self._stop['rule']}_rule"
        return "epochs" if row.epoch >= self._epochs else ""

    def _met(self, row: EpochRow, measured: Sequence[MeasurementRow] | None) -> bool:
        rule = self._rule
        if rule is None:
            return False
        if not rule.needs_flatness:
            return rule.update(epoch=row.epoch, loss=row.validation_loss)
        if measured is None:
            return False
        flatness = _value(measured, self._stop["measure"])
        return rule.update(epoch=row.epoch, loss=row.validation_loss, flatness=flatness)


def _value(measured: Sequence[MeasurementRow], name: str) -> float:
    for row in measured:
        if (row.measure, row.layer) == (name, ""):
            return row.value
    have = ", ".join(dict.fromkeys(row.measure for row in measured)) or "nothing"
    raise SpiritlevelError(
        f"The study's stop.measure must be one that suits the network. {name!r} was not measured; "
        f"measured were: {have}. Choose one of `spiritlevel list`."
    )
