"""What a user asks of an estimate: its method, its precision, and how much work it may take."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

from ..ground.errors import SpiritlevelError, brief
from ..ground.need import is_number, is_whole, need, one_of, whole
from .purse import Purse

Method = Literal[
    "auto", "exact", "output_probes", "sample_probes", "split", "hutchinson", "hutch++"
]
EXACT_COLUMNS = 16  # up to this many columns, all of them cost no more than a few probes
MOST_PASSES = 10_000  # of a sweep with columns of elementwise functions, whatever the method


@dataclasses.dataclass(frozen=True)
class Way:
    """What a method may use to find rows of a Hessian; the rest of the engine asks only this."""

    ggn: bool = True  # the GGN's rows, which are the Hessian's where that is certified
    residual: bool = True  # where it is not: probes of H − GGN
    hessian: bool = True  # or of H itself, if a few show that these vary less
    output_probes: Literal["never", "many", "always"] = "many"  # or only in place of many columns
    sample_probes: Literal["never", "large", "always"] = "never"  # or only in large networks
    cheapest: bool = False  # also another way than asked for, where it costs less
    sketch: bool = False  # dominant directions are taken out first
    # columns of elementwise functions: only if the sweep then stays within the passes, or any
    elements: Literal["never", "affordable", "always"] = "never"


WAYS: dict[Method, Way] = {
    "auto": Way(sample_probes="large", cheapest=True, elements="affordable"),
    "exact": Way(residual=False, output_probes="never", elements="always"),
    "output_probes": Way(residual=False, output_probes="always"),
    "sample_probes": Way(sample_probes="always"),
    "split": Way(hessian=False),
    "hutchinson": Way(ggn=False, residual=False),
    "hutch++": Way(ggn=False, residual=False, sketch=True),
}


@dataclasses.dataclass(frozen=True)
class Precision:
    """Method, relative half-width and confidence of the interval, and how many passes at most."""

    method: Method = "auto"
    rtol: float = 0.05
    confidence: float = 0.95
    max_passes: int = 100
    purse: Purse | None = dataclasses.field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        need(
            "method",
            self.method,
            one_of(WAYS),
            f"one of {', '.join(WAYS)}",
            "'auto' picks by cost and certificate.",
        )
        need("rtol", self.rtol, is_number, "a number")
        need("confidence", self.confidence, is_number, "a number")
        typical = "Typical: 100."
        passes = "a whole number of passes over the data"
        need("max_passes", self.max_passes, is_whole, passes, typical)
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
        least = "at least 1 pass over the data"
        need("max_passes", self.max_passes, whole(least=1), least, typical)

    def asked(self) -> dict[str, Any]:
        """What the user asked for, for the record."""
        fields = (field.name for field in dataclasses.fields(self) if field.compare)
        return {name: getattr(self, name) for name in fields}

    def passes_left(self, spent: int, *, price: float, stage: float = 0.0) -> int:
        """How many more passes an estimate may take that took `spent` of them.

        Each costs `price` forward-backwards, and all that come next together `stage` in addition.
        """
        left = self.max_passes - spent
        if self.purse is None:
            return left
        return max(0, min(left, int((self.purse.left - stage) / price)))

    @property
    def way(self) -> Way:
        """What the method may use."""
        return WAYS[self.method]

    def probes_columns(self, num_columns: int) -> bool:
        """Whether output probes replace so many columns, at least to begin with."""
        if self.way.output_probes == "many":
            return num_columns > EXACT_COLUMNS
        return self.way.output_probes == "always"

    def takes_elements(self, num_passes: float) -> bool:
        """Whether a sweep that completes the GGN to the Hessian may take so many passes."""
        affordable = {"never": 0, "affordable": self.max_passes, "always": MOST_PASSES}
        return num_passes <= affordable[self.way.elements]

    def most_probes(self, num_columns: int) -> float:
        """From so many output probes on, all columns are taken instead."""
        return math.inf if self.way.output_probes == "always" else num_columns
