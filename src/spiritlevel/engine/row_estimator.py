"""A trace, κ or ρ to the precision that was asked for, and how it came about, in words."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from ..records.measurements import Cost, Status
from .data_pass import NEEDS, Needs
from .estimate import Estimate, estimates_of_columns
from .refine import for_more, is_accepted, is_precise, missed, refine
from .row_probing import RowProbing
from .sweep.sums import Factors, RowKind
from .workspace import Workspace

TOO_FEW = "so few probes give no interval"
NEARLY_ALL_BEND = "the outputs bend in nearly all weights"


@dataclasses.dataclass(frozen=True)
class RowEstimate:
    """An estimate, which matrix it is of, and how it was computed."""

    estimate: Estimate
    quantity: str  # "Hessian" or "GGN"
    status: Status
    text: str
    cost: Cost

    @property
    def exact(self) -> bool:
        """Whether the value is exact, and of the matrix that was asked for."""
        return self.estimate.exact and self.status is Status.OK


class RowEstimator:
    """What is known of rows of one kind, once probes have brought their sum to the precision."""

    def __init__(self, rows: RowProbing) -> None:
        self.rows, self.workspace = rows, rows.workspace

    def result(self, factors: Factors | None = None, *, added: float = 0.0) -> RowEstimate:
        """The whole, or Σ over rows of factor × value; with a known number `added` to it."""
        judged = factors is None
        rows, asked = self.rows, self.workspace.precision
        factors = rows.whole if factors is None else factors
        if judged and added and rows.probes is not None:  # which may nearly cancel a value below 0
            refine(rows.draws(added), asked)
        estimate = rows.estimate(factors)
        estimate = dataclasses.replace(estimate, value=estimate.value + added)
        uncertified = rows.uncertified(factors) if rows.probes is None else []
        if uncertified:
            status, text = Status.GGN, _ggn_text(rows, uncertified)
            if estimate.unknown:
                text = f"{text.rstrip('.')}; {TOO_FEW}: {for_more(rows.draws(), asked)}"
                status = Status.NOT_CONVERGED
            return RowEstimate(estimate, "GGN", status, text, self.cost)
        status, text = Status.OK, ""
        if judged or not estimate.exact:
            text = _how(rows, factors)
            if estimate.unknown:
                text = f"{text}; {TOO_FEW}: {for_more(rows.draws(), asked)}"
                status = Status.NOT_CONVERGED
            elif judged and not is_precise(estimate, asked):
                status = Status.OK if is_accepted(estimate, asked) else Status.NOT_CONVERGED
                text = f"{text}; {missed(rows.draws(added), asked, estimate)}"
        if status is Status.OK and estimate.exact and (doubt := self._doubt(factors)):
            status, text = Status.UNCONFIRMED, f"{_how(rows, factors)}, but not confirmed: {doubt}"
        hidden = hidden_text(self.workspace, estimate)
        remark = "" if rows.probes is None or not rows.of_probed(factors) else rows.probes.remark
        notes = (text.rstrip("."), remark, hidden, _tied_text(rows, factors))
        text = "; ".join(note for note in notes if note)
        return RowEstimate(estimate, "Hessian", status, text, self.cost)

    def _doubt(self, factors: Factors) -> str:
        """What a second look says against the exact value of one of these rows."""
        rows = self.rows
        doubts = self.workspace.run(NEEDS[rows.kind]).doubts
        swept = [rows.parameters[row] for row in factors if row not in rows.probed]
        names = [name for name in swept if name in doubts]
        return f"{names[0]!r}: {doubts[names[0]]}" if names else ""

    @property
    def cost(self) -> Cost:
        """The work of the sweep and of the probes that these rows use."""
        sweep = self.workspace.sweep_cost if self.workspace.swept else Cost()
        return sweep + (Cost() if self.rows.probes is None else self.rows.probes.cost)

    @property
    def for_more_of_a_part(self) -> str:
        """What makes a single layer more precise: probes end once the sum is precise enough."""
        more = for_more(self.rows.draws(), self.workspace.precision)
        return f"the sum over the layers is not, so {more}" if more == "lower rtol" else more

    def sharpest_neuron(self, layer: str) -> RowEstimate:
        """The largest ρ(j) of a layer, with the error of that neuron's value."""
        estimate = max(self.neurons(layer), key=lambda neuron: neuron.value)
        base = self.result({layer: 1.0})
        text = base.text
        if not estimate.exact:
            text = f"{text.rstrip('.')}; the largest of noisy values, so biased upwards"
        return dataclasses.replace(base, estimate=estimate, text=text)

    def neurons(self, layer: str) -> list[Estimate]:
        """ρ(j) of every input neuron of a layer."""
        rows, parts = self.rows, []
        if not (layer in rows.probed and rows.operator == "hessian"):
            neurons = estimates_of_columns(self.workspace.sweep_neurons(layer).tolist())
            if self.workspace.sweep_estimate("rho", {layer: 1.0}).unknown:
                neurons = [dataclasses.replace(each, variance=math.inf) for each in neurons]
            parts.append(neurons)
        if layer in rows.probed and rows.probes is not None:
            parts.append(rows.probes.neurons(rows.operator, layer))
        return parts[0] if len(parts) == 1 else [a + b for a, b in zip(*parts, strict=True)]


def estimate_rows(
    workspace: Workspace, kind: RowKind, parameters: Mapping[str, str], whole: Factors
) -> RowEstimator:
    """The rows of a kind to the workspace's precision, computed once per distinct request."""
    return workspace.once(
        (kind, tuple(sorted(whole.items()))),
        lambda: RowEstimator(RowProbing(workspace, kind, parameters, whole)),
    )


def _how(rows: RowProbing, factors: Factors) -> str:
    """How these rows were computed, and why that way."""
    workspace, probes = rows.workspace, rows.probes
    probed = list(rows.of_probed(factors))
    if probes is None or not probed:
        if workspace.probed:
            return f"{probes_text(workspace)}; certified"
        return f"{columns_text(workspace)}{elements_text(workspace)}, certified"
    count = f"{probes.count(rows.operator)} {probes.text}"
    if rows.precision.way.sketch:
        return f"Hutch++: {count} after {probes.sketched} dominant directions"
    if not rows.precision.way.ggn:
        return f"{count} of the Hessian"
    bent = _uncertified_text(rows, probed) if workspace.swept else NEARLY_ALL_BEND
    why = "; ".join(filter(None, (bent, rows.not_by_samples)))
    if probes.complete(rows.operator):
        return f"a Hessian product in each of {probes.count(rows.operator)} directions: {why}"
    if rows.operator == "hessian":
        other = f", and the residual H − GGN has {rows.compared}" if rows.compared else ""
        return f"{count} of the Hessian: {why}{other}"
    exactly = f"{workspace.sweep_text} from {columns_text(workspace)}"
    swept = probes_text(workspace) if workspace.probed else exactly
    has = f", and it has {rows.compared}" if rows.compared else ""
    return f"{swept} and {count} of the residual H − GGN: {why}{has}"


def _ggn_text(rows: RowProbing, uncertified: Sequence[str]) -> str:
    """Why a value is the GGN's."""
    reason = rows.workspace.certificates[rows.parameters[uncertified[0]]].reason
    return (
        f"of the GGN, not the Hessian: {_uncertified_text(rows, uncertified)}, {reason}. For the "
        "Hessian's value use method='auto', which adds weight probes."
    )


def _tied_text(rows: RowProbing, factors: Factors) -> str:
    """The remark that weights have two names; empty if none has."""
    tied = rows.workspace.surface.layers.tied
    names = [rows.parameters[row] for row in factors if rows.parameters[row] in tied]
    if not names:
        return ""
    return f"{names[0]!r} is also {tied[names[0]]!r} (tied): one weight, both uses counted"


def hidden_text(workspace: Workspace, estimate: Estimate) -> str:
    """The remark that the sampling error cannot be told from that of the probes, if so."""
    hidden = estimate.drawn and estimate.data_variance is None and workspace.num_samples > 1
    return "no ± data: the noise of the probes hides it" if hidden else ""


def _uncertified_text(rows: RowProbing, names: Sequence[str]) -> str:
    others = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"not certified for {rows.parameters[names[0]]!r}{others}"


def columns_text(workspace: Workspace) -> str:
    """How many columns the sweep took."""
    count = workspace.plan.num_columns
    return f"{count} column{'s' * (count != 1)}"


def elements_text(workspace: Workspace) -> str:
    """How many columns of elementwise functions it took besides; empty if none."""
    if not workspace.swept or workspace.run(Needs(sweep=True)).whole is None:
        return ""
    return f" and {workspace.plan.num_elements} of elementwise functions"


def probes_text(workspace: Workspace) -> str:
    """How many output probes were taken, and why not all columns."""
    asked_for = workspace.precision.way.output_probes == "always"
    why = "" if asked_for else f", which would take {workspace.plan.num_columns} passes"
    return f"{workspace.sweep_text}{why}"
