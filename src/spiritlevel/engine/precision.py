"""What a user asks of an estimate: by which method, how precise, at what price."""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args

from ..errors import SpiritlevelError

Method = Literal["auto", "exact", "output_probes", "split", "hutchinson", "hutch++"]

METHODS = {
    "auto": "exact where that is cheap and certified, otherwise the cheapest estimate that suits",
    "exact": "all factor columns of the outputs; of the GGN where the network is not certified",
    "output_probes": "random signs in place of the columns; of the GGN where not certified",
    "split": "the GGN by columns or output probes, and weight probes for the residual H − GGN",
    "hutchinson": "weight probes for the whole Hessian",
    "hutch++": "the same after the dominant directions have been taken out",
}


@dataclasses.dataclass(frozen=True)
class Precision:
    """Relative half-width of the interval, its confidence, and passes over the data at most."""

    method: Method = "auto"
    rtol: float = 0.05
    confidence: float = 0.95
    max_passes: int = 100

    def __post_init__(self) -> None:
        """Refuse what cannot be met by any estimate."""
        if self.method not in get_args(Method):
            raise SpiritlevelError(
                f"The 'method' argument must be one of {', '.join(get_args(Method))}. "
                f"Got {self.method!r}. 'auto' picks by cost and certificate."
            )
        for name in ("rtol", "confidence"):
            if not isinstance(getattr(self, name), int | float):
                raise SpiritlevelError(
                    f"The {name!r} argument must be a number. Got {getattr(self, name)!r}."
                )
        if not isinstance(self.max_passes, int):
            raise SpiritlevelError(
                "The 'max_passes' argument must be a whole number of passes over the data. "
                f"Got {self.max_passes!r}. Typical: 100."
            )
        if not 0.0 < self.rtol < 1.0:
            raise SpiritlevelError(
                f"The 'rtol' argument must lie between 0 and 1. Got {self.rtol!r}. 0.05 asks for "
                "5 % of the value; for exact values where they can be had use method='exact'."
            )
        if not 0.0 < self.confidence < 1.0:
            raise SpiritlevelError(
                f"The 'confidence' argument must lie between 0 and 1. Got {self.confidence!r}. "
                "Typical: 0.95."
            )
        if self.max_passes < 1:
            raise SpiritlevelError(
                "The 'max_passes' argument must be at least 1 pass over the data. "
                f"Got {self.max_passes!r}. Typical: 100."
            )
