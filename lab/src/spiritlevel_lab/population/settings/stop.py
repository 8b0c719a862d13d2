"""The section `stop` of a study: what ends training before the last epoch."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.training.stopping import FlatnessStopping, Rule

from .keys import (
    as_mapping,
    changed_values,
    check_keys,
    number,
    one_of,
    read_values,
    readers_of,
    text,
)

RULES: tuple[Rule, ...] = ("loss", "flatness", "both", "trend")
FLATNESS = "head.kappa"  # what a rule on flatness looks at, as in paper 000
LEVELS = ("train_loss", "train_accuracy", "running_loss", "gradient_norm", "head_gradient")
OF_THE_RULE = ("patience", "tolerance", "measure")


@dataclasses.dataclass(frozen=True)
class StopSettings:
    """A level of training that ends it, or a rule on what was seen; by default neither.

    The numbers of a rule are those of paper 000, section 5.6, where the study gives none. `measure`
    is None where there is no rule on flatness.
    """

    train_loss: float | None = number(float, None, "a number above 0", lambda v: v > 0)
    train_accuracy: float | None = number(float, None, "a number in (0, 1]", lambda v: 0 < v <= 1)
    # the mean over the batches of an epoch, each before its step: of their losses,
    running_loss: float | None = number(float, None, "a number above 0", lambda v: v > 0)
    # and of their gradients: its Euclidean norm, and the largest entry for the head's weights
    gradient_norm: float | None = number(float, None, "a number above 0", lambda v: v > 0)
    head_gradient: float | None = number(float, None, "a number above 0", lambda v: v > 0)
    rule: str = one_of("none", *RULES, default="none")
    patience: int = number(int, 10, "a whole number of at least 1", lambda v: v >= 1)
    tolerance: float = number(float, 0.02, "a number above 0", lambda v: v > 0)
    measure: str | None = text("the name of a measure")

    @classmethod
    def read(cls, given: object) -> StopSettings:
        """Every value checked; without a rule its numbers are left out."""
        section = as_mapping("stop", given)
        check_keys("stop", section, readers_of(cls))
        values = read_values("stop", section, cls)
        of_the_rule = [key for key in OF_THE_RULE if key in values]
        if of_the_rule and "rule" not in values:
            raise SpiritlevelError(
                f"The study's stop.{of_the_rule[0]} has no effect without stop.rule. "
                f"Add for example `rule: trend`, or leave {of_the_rule[0]} out."
            )
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

    def to_dict(self) -> dict[str, Any]:
        """As a run's id and the store have it."""
        names = ["patience"] if self.rule != "none" else []
        names += ["tolerance"] if self.measure is not None else []
        return {name: getattr(self, name) for name in names} | changed_values(self)
