"""What a user asks of an estimate: its method, its precision, and how much work it may take."""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args

from ..ground.errors import SpiritlevelError, brief

Method = Literal[
    "auto", "exact", "output_probes", "sample_probes", "split", "hutchinson", "hutch++"
]


@dataclasses.dataclass(frozen=True)
class Precision:
    """Method, relative half-width and confidence of the interval, and how many passes at most."""

    method: Method = "auto"
    rtol: float = 0.05
    confidence: float = 0.95
    max_passes: int = 100

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        if self.method not in get_args(Method):
            raise SpiritlevelError(
                f"The 'method' argument must be one of {', '.join(get_args(Method))}. "
                f"Got {brief(self.method)}. 'auto' picks by cost and certificate."
            )
        for name in ("rtol", "confidence"):
            if not isinstance(getattr(self, name), int | float):
                raise SpiritlevelError(
                    f"The {name!r} argument must be a number. Got {brief(getattr(self, name))}."
                )
        if not isinstance(self.max_passes, int):
            raise SpiritlevelError(
                "The 'max_passes' argument must be a whole number of passes over the data. "
                f"Got {brief(self.max_passes)}. Typical: 100."
            )
        if not 0.0 < self.rtol < 1.0:
            raise SpiritlevelError(
                f"The 'rtol' argument must lie between 0 and 1. Got {brief(self.rtol)}. 0.05 asks "
                "for 5 % of the value; for exact values where they can be had use method='exact'."
            )
        if not 0.0 < self.confidence < 1.0:
            raise SpiritlevelError(
                "The 'confidence' argument must lie between 0 and 1. Got "
                f"{brief(self.confidence)}. Typical: 0.95."
            )
        if self.max_passes < 1:
            raise SpiritlevelError(
                "The 'max_passes' argument must be at least 1 pass over the data. "
                f"Got {brief(self.max_passes)}. Typical: 100."
            )
