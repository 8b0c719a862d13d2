"""How rows were computed and what is missing to the precision asked for, in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .estimate import Estimate
from .sweep.sums import Factors
from .sweep_text import columns_text, probes_text
from .weight_space.probes import PILOT, WeightProbes, promised_count

if TYPE_CHECKING:
    from .row_estimator import RowEstimator

TOO_FEW = "so few probes give no interval: raise max_passes"
NEARLY_ALL_BEND = "the outputs bend in nearly all weights"
SECOND_GLANCE = 6 * PILOT  # if at least this many probes are still needed, compare 32 of each


def how(rows: RowEstimator, factors: Factors) -> str:
    """How these rows were computed, and why that way."""
    workspace, probes = rows.workspace, rows.probes
    probed = list(rows.of_probed(factors))
    if probes is None or not probed:
        if workspace.probed:
            return f"{probes_text(workspace)}; certified"
        return f"{columns_text(workspace)}, certified"
    count = f"{probes.count(rows.operator)} {probes.text}"
    if rows.precision.method == "hutch++" and isinstance(probes, WeightProbes):
        return f"Hutch++: {count} after {probes.sketched} dominant directions"
    if rows.precision.method == "hutchinson":
        return f"{count} of the Hessian"
    bent = _uncertified_text(rows, probed) if workspace.swept else NEARLY_ALL_BEND
    why = "; ".join(filter(None, (bent, rows.not_by_samples)))
    if isinstance(probes, WeightProbes) and probes.complete(rows.operator):
        return f"a Hessian product in each of {probes.count(rows.operator)} directions: {why}"
    if rows.operator == "hessian":
        other = f", and the residual H − GGN has {rows.compared}" if rows.compared else ""
        return f"{count} of the Hessian: {why}{other}"
    exactly = f"{workspace.sweep_text} from {columns_text(workspace)}"
    swept = probes_text(workspace) if workspace.probed else exactly
    has = f", and it has {rows.compared}" if rows.compared else ""
    return f"{swept} and {count} of the residual H − GGN: {why}{has}"


def ggn_text(rows: RowEstimator, uncertified: Sequence[str]) -> str:
    """Why a value is the GGN's."""
    reason = rows.workspace.certificates[rows.parameters[uncertified[0]]].reason
    return (
        f"of the GGN, not the Hessian: {_uncertified_text(rows, uncertified)}, {reason}. For the "
        "Hessian's value use method='auto', which adds weight probes."
    )


def tied_text(rows: RowEstimator, factors: Factors) -> str:
    """That a weight has two names."""
    tied = rows.workspace.surface.layers.tied
    names = [rows.parameters[row] for row in factors if rows.parameters[row] in tied]
    if not names:
        return ""
    return f"{names[0]!r} is also {tied[names[0]]!r} (tied): one weight, both uses counted"


def missed(rows: RowEstimator, estimate: Estimate) -> str:
    """How precise it is, and what would have sufficed."""
    asked = rows.precision
    reached = estimate.half_width(asked.confidence)
    done, share = how(rows, rows.whole), f"{asked.confidence:.0%}"
    if reached >= abs(estimate.value):
        at = _exact_at(rows)
        exact = f" ({at:.0f} gives the exact value)" if math.isfinite(at) else ""
        return (
            f"{done}; the {share} interval ±{reached:.2g} contains 0, so a relative "
            f"precision has no meaning yet. Raise max_passes{exact}, or read the interval."
        )
    return (
        f"{done}; reached ±{reached / abs(estimate.value):.1%} at {share}, asked for "
        f"±{asked.rtol:.1%}. {_passes_that_suffice(rows)}"
    )


def _uncertified_text(rows: RowEstimator, names: Sequence[str]) -> str:
    others = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"not certified for {rows.parameters[names[0]]!r}{others}"


def _passes_that_suffice(rows: RowEstimator) -> str:
    probes = rows.probes
    if probes is None:
        return rows.workspace.sweep_budget(rows.kind, rows.whole)
    count = rows.sufficient()
    if not math.isfinite(count):
        return "The output probes alone exceed it: use method='exact', or a larger rtol."
    enough = promised_count(count, rows.estimate(rows.whole))
    others = probes.passes - probes.count(rows.operator)
    if rows.compared and enough >= SECOND_GLANCE:
        others = max(others, probes.pilot)  # the other operator is then probed too
    if (exact := _exact_at(rows)) <= enough + others:
        return f"max_passes={exact:.0f} would have given the exact value."
    return f"max_passes={enough + others} would have sufficed."


def _exact_at(rows: RowEstimator) -> float:
    """The max_passes with which every direction is taken; infinite if it never is."""
    probes = rows.probes
    if rows.precision.method != "auto" or not isinstance(probes, WeightProbes):
        return math.inf
    # before that, a pilot of both operators may have been drawn
    return math.inf if probes.directions is None else probes.directions + 2 * PILOT
