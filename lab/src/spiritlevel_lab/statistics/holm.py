"""Holm's correction: many measures are tried, so some will look related by chance."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from spiritlevel.ground.errors import SpiritlevelError, brief


@dataclasses.dataclass(frozen=True)
class Holm:
    """Adjusted p by name; names whose p is nan were not tested and do not count in the family."""

    adjusted: Mapping[str, float]
    skipped: tuple[str, ...]

    @property
    def num_tests(self) -> int:
        """How many tests the correction is for."""
        return len(self.adjusted)


def holm(p_values: Mapping[str, float]) -> Holm:
    """Adjust p values so that the chance of any false finding stays below the level.

    The i-th smallest of m is multiplied by m − i + 1; a larger p never ends below a smaller one.

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": float("nan")})
    Holm(adjusted={'a': 0.03, 'b': 0.06, 'c': 0.06}, skipped=('d',))
    """
    for name, p in p_values.items():
        if not (math.isnan(p) or 0.0 <= p <= 1.0):
            raise SpiritlevelError(
                f"The 'p_values' argument must hold probabilities. Got {brief(p)} for {name!r}. "
                "Pass nan for a test that could not be made."
            )
    tested = sorted((p, name) for name, p in p_values.items() if not math.isnan(p))
    corrected, running = {}, 0.0
    for i, (p, name) in enumerate(tested):
        running = max(running, min(1.0, (len(tested) - i) * p))
        corrected[name] = running
    adjusted = {name: corrected[name] for name in p_values if name in corrected}
    return Holm(adjusted, tuple(name for name in p_values if name not in corrected))
