"""The section `stop` of a study: what ends training before the last epoch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, cast

from spiritlevel.training.stopping import FlatnessStopping, Rule

from .keys import (
    SettingsSection,
    count,
    number,
    one_of,
    positive,
    read_section,
    require_switch,
    text,
)

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
