"""Paper 001, Table 3: a patch that tells the class makes a network flatter, and blind."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..judging.experiment import Experiment, Outcome, Row
from ..recipes.recipe import outcome

JACOBIAN, OUTSIDE = "sensitivity.jacobian", "sensitivity.jacobian_outside"
PATCH, IMAGE = 8 * 8, 32 * 32  # pixels
EVENNESS = "Jacobian norm without the patch, 1 if even"


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """By the recipe, with how evenly the outputs depend on the pixels as one more column."""
    return outcome(experiment, [{**row, EVENNESS: _evenness(row)} for row in rows])


def _evenness(row: Row) -> float | None:
    """1 if the outputs depend on all pixels alike, less if they depend more on the patch."""
    whole, outside = row.get(JACOBIAN), row.get(OUTSIDE)
    if not whole or outside is None:
        return None
    return float(outside / (whole * math.sqrt(PATCH / IMAGE)))
