"""Columns of a study's numbers, and which of the runs a picture can show."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from spiritlevel.ground.errors import SpiritlevelError

from ...population.outcome_names import TARGETS
from ...population.population import Population
from ...population.storage.store import Store

QUARTILES = (0.25, 0.5, 0.75)
EPOCH_WORDS = {
    "train_loss": "training loss",
    "test_loss": "test loss",
    "train_accuracy": "training accuracy",
    "test_accuracy": "test accuracy",
}


def finished(study: Store | Population) -> Population:
    """The population to draw; one without a finished run is refused."""
    population = Population.of(study)
    if not population.done:
        raise SpiritlevelError(
            f"The study in {population.folder!r} has no finished run yet: there is nothing to "
            f"draw. See `spiritlevel study status {population.folder}`."
        )
    return population


def axis_title(name: str) -> str:
    """A column with its definition, for an axis."""
    if name in TARGETS and name != TARGETS[name].replace(" ", "_"):
        return f"{name.replace('_', ' ')}: {TARGETS[name]}"
    return EPOCH_WORDS.get(name, name)


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Points that can be drawn, and how many cannot."""

    x: list[float]
    y: list[float]
    places: list[int]  # of the runs, in the population
    missing: int  # runs without two finite numbers
    not_positive: int  # runs that have no place on a log axis

    @property
    def text(self) -> str:
        """How many runs are seen, and why others are not."""
        parts = [f"n = {len(self.places)}"]
        if self.missing:
            parts.append(f"{self.missing} without finite numbers")
        if self.not_positive:
            parts.append(f"{self.not_positive} not positive left out")
        return ", ".join(parts)


def num_runs(number: int) -> str:
    """A number of runs, in words."""
    return "1 run" if number == 1 else f"{number} runs"


def pairs(x: Sequence[float], y: Sequence[float], *, log: str = "") -> Pairs:
    """The finite points; on the axes named in `log` ("x", "y", "xy") the positive ones."""
    finite = [i for i, point in enumerate(zip(x, y, strict=True)) if all(map(math.isfinite, point))]
    drawn = [i for i in finite if ("x" not in log or x[i] > 0) and ("y" not in log or y[i] > 0)]
    return Pairs(
        [x[i] for i in drawn],
        [y[i] for i in drawn],
        drawn,
        missing=len(x) - len(finite),
        not_positive=len(finite) - len(drawn),
    )


def spans_decades(values: Sequence[float]) -> bool:
    """Whether a log axis is possible and of use."""
    return bool(values) and min(values) > 0 and max(values) > 10 * min(values)
