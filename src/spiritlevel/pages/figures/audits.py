"""What each symmetry of a network does to each number."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ...ground.errors import SpiritlevelError
from ...symmetries import CONFIDENCE_ONLY
from ...verbs.audit import Audit, cell
from .style import COLUMN, GREY, PAGE, PRINT_FONT, new_axes, shown, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

UNDECIDED = "#DDDDDD"
STRONGEST = 1000.0  # a factor beyond this is as dark as this


def audit_matrix(audit: Audit, *, ax: Axes | None = None) -> Axes:
    """Measures down, moves across: = is unchanged, a number is the factor, ? is not decided.

    The darker a cell, the further its number moved. Moves right of the line change the confidence
    of the predictions, all others leave the function as it is. On the right, the verdict.
    """
    moves = [*audit.preserving, *(move for move in audit.moved if move in CONFIDENCE_ONLY)]
    if not moves:
        raise SpiritlevelError(
            "The audit found no move of this network, so there is no matrix to draw. "
            "`print(audit)` says which moves do not apply to it, and why."
        )
    measures = list(audit.original)
    wide = max(COLUMN, min(PAGE, 3.0 + 0.5 * len(moves)))
    ax = new_axes(ax, wide, 1.3 + 0.19 * len(measures))
    shades = [[_shade(audit, measure, move) for move in moves] for measure in measures]
    import matplotlib

    colours = matplotlib.colormaps["Oranges"].with_extremes(bad=UNDECIDED, under="white")
    ax.imshow(shades, cmap=colours, vmin=1e-9, vmax=1.25 * math.log10(STRONGEST), aspect="auto")
    small: dict[str, Any] = {"fontsize": PRINT_FONT - 1, "va": "center"}
    for i, measure in enumerate(measures):
        for j, move in enumerate(moves):
            ax.text(j, i, cell(audit, measure, move), ha="center", **small)
        kind = audit.verdict(measure).kind
        ax.text(len(moves) - 0.4, i, kind, color=GREY, clip_on=False, **small)
    names = [f"{shown(measure)}  {audit.original[measure].value:.3g}" for measure in measures]
    ax.set_yticks(range(len(measures)), names)
    ax.set_xticks(range(len(moves)), [shown(move) for move in moves], rotation=40, ha="right")
    ax.tick_params(labelsize=PRINT_FONT - 1, length=0)
    for side in ax.spines.values():
        side.set_visible(False)
    split = 0 < len(audit.preserving) < len(moves)
    if split:
        ax.axvline(len(audit.preserving) - 0.5, color="black", linewidth=1)
    samples = audit.original.settings.get("num_samples")
    title(
        ax,
        "numbers: factors of a move; =: unchanged; ?: not decided",
        "right of the line: moves that change confidence alone" if split else "",
        f"n = {samples} samples",
    )
    return ax


def _shade(audit: Audit, measure: str, move: str) -> float:
    """How far a number moved, in powers of ten; nan where the errors leave it open."""
    outcome = audit.has_moved(measure, move)
    if outcome is None:
        return math.nan
    factor = abs(audit.factor(measure, move))
    if not outcome:
        return 0.0
    if factor == 0 or not math.isfinite(factor):
        return math.log10(STRONGEST)
    return min(abs(math.log10(factor)), math.log10(STRONGEST))
