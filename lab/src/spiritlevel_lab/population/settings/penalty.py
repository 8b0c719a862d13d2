"""The key `training.penalty` of a study: a weight, or a penalty by name."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from spiritlevel.ground.errors import SpiritlevelError, brief

from .keys import Check, as_mapping, is_scalar

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
