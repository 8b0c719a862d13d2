"""Choose how a trace, κ or ρ is computed, and compute it to the precision that was asked for.

Rows are parameters (trace) or layers (κ, ρ). The sweep gives their GGN values, exactly or by output
probes. Where the certificate holds, these are the Hessian's values. For the other rows the residual
H − GGN is estimated with probes: with sample probes in a large network, with weight probes in a
small one or where these do not apply. If a few probes of both show that the residual varies as much
as the Hessian itself, as it does far from a minimum, the Hessian is probed instead. If nearly all
weights of a large network bend, it is probed first, and the sweep may be needless. In a tiny
network a product with every direction costs less than the probes, and is exact.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from ..ground.errors import NotApplicable
from ..records.measurements import Cost, Status
from .data_pass import Needs
from .estimate import Estimate, estimates_of_columns
from .row_estimate import RowEstimate
from .row_texts import (
    SECOND_GLANCE,
    TOO_FEW,
    ggn_text,
    how,
    missed,
    tied_text,
)
from .sample_probes import SampleProbes
from .shared_probes import shared_probes, sketch_size
from .sweep.sums import Factors, RowKind
from .weight_space.chunk_products import Operator
from .weight_space.probes import (
    GROWTH,
    PILOT,
    WeightProbes,
    next_count,
)
from .weight_space.products import SMALL
from .workspace import Workspace

# If as many sample probes as that seem to be needed after a few more, weight probes are looked at.
A_FEW_SAMPLE_PROBES, MANY_SAMPLE_PROBES = 8, 48
WEIGHT_PROBE = 4  # what one costs, in sample probes: a product needs the gradients of all weights


NEEDS: dict[RowKind, Needs] = {
    "trace": Needs(sweep=True),
    "kappa": Needs(sweep=True, kappa=True),
    "kappa_std": Needs(sweep=True, kappa=True, standardized=True),
    "kappa_var": Needs(sweep=True, kappa=True, standardized=True),
    "rho": Needs(sweep=True, rho=True),
}


class RowEstimator:
    """Estimates rows of one kind; `whole` is the sum of rows that must reach the precision."""

    def __init__(
        self, workspace: Workspace, kind: RowKind, parameters: Mapping[str, str], whole: Factors
    ):
        """`parameters` gives the parameter of every row."""
        self.workspace, self.kind, self.whole = workspace, kind, whole
        self.parameters = dict(parameters)
        self.precision = workspace.precision
        self.probes: WeightProbes | SampleProbes | None = None
        self.operator: Operator = "hessian"
        self.probed: tuple[str, ...] = ()  # rows whose value needs weight probes
        self.not_by_samples = ""  # why sample probes do not apply
        self.compared = ""  # how the variances of residual and Hessian compare, for the report
        self._run()
        if workspace.swept and self.probes is None:  # products were checked before they were used
            _ = workspace.run(NEEDS[kind]).doubts  # refuses a gradient that is not the loss's

    # -- the choice --------------------------------------------------------------------------

    def _run(self) -> None:
        method = self.precision.method
        if method in ("hutchinson", "hutch++"):
            self.probed = tuple(self.parameters)
            self.probes = probes = shared_probes(self.workspace, self.kind, self.probed)
            if method == "hutch++" and probes.exact_part is None:
                probes.sketch("hessian", sketch_size(self.precision))
            self._refine("hessian")
            return
        if not self.workspace.swept and self.workspace.sweep_can_wait:
            self.probed = tuple(self.parameters)
            if self._run_sample_probes():
                return
        self.workspace.run(NEEDS[self.kind])
        uncertified = self._uncertified_rows(self.parameters)
        if method in ("exact", "output_probes") or not uncertified:
            self.probed = ()
            self._sweep(self.precision.rtol)
            return
        self.probed = tuple(uncertified)
        large = method == "sample_probes" or (method == "auto" and self._is_large())
        if large and not self.not_by_samples and self._run_sample_probes():
            return
        self._sweep(self.precision.rtol / 2)
        self.probes = probes = shared_probes(self.workspace, self.kind, self.probed)
        if probes.complete("hessian") or self._all_are_few(PILOT):
            self._take_all(probes)
            return
        if method == "split" or probes.few:
            # A choice by the spread of a few probes, whose mean is the result, would favour those
            # that are small by chance.
            self._refine("residual")
            return
        self._choose()
        self._refine(self.operator)

    def _is_large(self) -> bool:
        """Whether sample probes pay: in a small network they have heavy tails, and cost no less."""
        parameters = self.workspace.surface.parameters
        return sum(parameters[self.parameters[row]].numel() for row in self.probed) > SMALL

    def _run_sample_probes(self) -> bool:
        """Whether sample probes apply; if they do, until the rows are precise enough."""
        key, cache = ("sample probes", self.kind, self.probed), self.workspace.cache
        try:
            if key not in cache:
                cache[key] = SampleProbes(self.workspace, self.kind, self.probed, self.parameters)
            self.probes = cache[key]
            self._choose_by_samples()
            if self.operator == "residual" or len(self.probed) < len(self.parameters):
                self._sweep(self.precision.rtol / 2)
            if self._weight_probes_are_better():
                self.probes, self.not_by_samples = None, "sample probes vary too much"
                return False
            self._refine(self.operator)
        except NotApplicable as reason:
            self.probes, self.not_by_samples = None, f"no sample probes: {reason}"
        return self.probes is not None

    def _choose_by_samples(self) -> None:
        """The Hessian if a few probes of it suffice; otherwise whichever varies less."""
        self._draw_pilot("hessian")
        self.operator = "hessian"
        if len(self.probed) == len(self.parameters):  # the residual would need a sweep besides
            while more := self._more_of_a_few():
                self._probes.draw(["hessian"], more)
            if self._converged():
                return
        self._draw_pilot("residual")
        self._take_less_varying()

    def _more_of_a_few(self) -> int:
        """How many more probes make a few that suffice; 0 if they do already, or never will."""
        probes, most = self._probes, min(A_FEW_SAMPLE_PROBES, self.precision.max_passes)
        left = most - probes.passes
        if self._converged() or left < probes.least:
            return 0
        if self.estimate(self.whole).unknown:
            return probes.least  # often gives an interval
        needed = 1.05 * self.sufficient()
        return max(math.ceil(needed) - probes.passes, probes.least) if needed <= most else 0

    def _weight_probes_are_better(self) -> bool:
        """Where many sample probes are still needed, whether weight probes would be cheaper.

        Few samples with large gradients may decide: then noise of the weights varies less.
        """
        samples, asked = self._probes, self.precision
        if asked.method != "auto" or self._converged():
            return False
        while (needed := self.sufficient()) >= A_FEW_SAMPLE_PROBES:
            if not (more := self._more_to_tell()):
                break
            samples.draw([self.operator], more)
        if self._converged() or needed < MANY_SAMPLE_PROBES:
            return False
        judged = self.of_probed(self.whole)
        rival = shared_probes(self.workspace, self.kind, self.probed)
        if not rival.values:
            rival.draw(["residual", "hessian"], max(2, min(rival.glance, asked.max_passes // 2)))
        least = min(rival.spread(each, judged, rival.common) for each in rival.values)
        return WEIGHT_PROBE * least < samples.spread(self.operator, judged, samples.common)

    def _more_to_tell(self) -> int:
        """As many probes again, up to a few: two alone say little about how many are needed."""
        probes, count = self._probes, self._probes.count(self.operator)
        left = min(A_FEW_SAMPLE_PROBES - count, self.precision.max_passes - probes.passes)
        return min(count, left) if left >= probes.least else 0

    def _choose(self) -> None:
        """Probe the residual or the Hessian, whichever varies less.

        A few probes show a large difference. A small one matters only if many probes will follow,
        and then more probes of both are cheap by comparison.
        """
        probes, most = self._probes, self.precision.max_passes
        if not probes.values:
            probes.draw(["residual", "hessian"], max(2, min(probes.glance, most // 2)))
        self._take_less_varying()
        self._draw_pilot(self.operator)
        if probes.pilot == probes.glance or self._converged():
            return
        if min(self.sufficient(), most) >= SECOND_GLANCE:
            self._draw_pilot("hessian" if self.operator == "residual" else "residual")
            self._take_less_varying()

    def _take_less_varying(self) -> None:
        judged, count = self.of_probed(self.whole), self._probes.common
        residual = self._probes.spread("residual", judged, count)
        hessian = self._probes.spread("hessian", judged, count)
        self.operator = "residual" if residual <= hessian else "hessian"
        without_variance = 1.0 if residual == hessian else math.inf  # if the Hessian has none
        share = residual / hessian if hessian else without_variance
        self.compared = f"{share:.2g} of the Hessian's variance in {count} probes of each"

    def _uncertified_rows(self, rows: Mapping[str, str] | Factors) -> list[str]:
        certificates = self.workspace.certificates
        return [row for row in rows if not certificates[self.parameters[row]].linear]

    @property
    def _probes(self) -> WeightProbes | SampleProbes:
        assert self.probes is not None
        return self.probes

    def _sweep(self, rtol: float) -> None:
        """Compute the GGN's rows, with output probes until the whole is precise enough."""
        self.workspace.sweep_to(NEEDS[self.kind], self.kind, self.whole, rtol)

    def _refine(self, operator: Operator) -> None:
        """Draw probes until the whole is within the tolerance, or the passes are used up."""
        self.operator = operator
        probes, asked = self._probes, self.precision
        self._draw_pilot(operator)
        while not self._converged():
            count = probes.count(operator)
            if isinstance(probes, WeightProbes) and self._all_are_few(self.sufficient() - count):
                self._take_all(probes)
                return
            wanted = math.ceil(1.05 * min(self.sufficient(), GROWTH * count))
            if self.estimate(self.whole).unknown:
                wanted = count + 2  # two more often give an interval
            more = min(max(wanted - count, probes.least), asked.max_passes - probes.passes)
            if more < probes.least:
                return
            probes.draw([operator], more)

    def _all_are_few(self, most: float) -> bool:
        """Whether all directions are at most so many, and as many products are left."""
        if self.precision.method != "auto" or not isinstance(self.probes, WeightProbes):
            return False
        size, left = self.probes.directions, self.precision.max_passes - self.probes.passes
        return size is not None and size <= min(most, left)

    def _take_all(self, probes: WeightProbes) -> None:
        self.operator = "hessian"
        if not probes.complete("hessian"):
            probes.take_all("hessian")

    def _draw_pilot(self, operator: Operator) -> None:
        """Draw the pilot of an operator, and at least the two probes that an interval needs."""
        count, left = self._probes.count(operator), self.precision.max_passes - self._probes.passes
        more = max(2 - count, min(self._probes.pilot - count, left))
        if more > 0:
            self._probes.draw([operator], more)

    # -- the outcome -------------------------------------------------------------------------

    def _converged(self) -> bool:
        return self._precise(self.estimate(self.whole))

    def _precise(self, estimate: Estimate) -> bool:
        asked = self.precision
        return estimate.variance == 0.0 or estimate.within(asked.rtol, asked.confidence)

    def sufficient(self) -> float:
        """How many probes would bring the whole within the tolerance."""
        asked = self.precision
        return next_count(
            self.estimate(self.whole),
            self._probes.estimate(self.operator, self.of_probed(self.whole)),
            self._probes.count(self.operator),
            rtol=asked.rtol,
            confidence=asked.confidence,
        )

    def of_probed(self, factors: Factors) -> dict[str, float]:
        """Those of the rows that need probes."""
        return {row: factor for row, factor in factors.items() if row in self.probed}

    def estimate(self, factors: Factors) -> Estimate:
        """Σ over rows of factor × value, from the sweep and the probes so far."""
        probed = self.of_probed(factors)
        swept = dict(factors)
        if self.probes is not None and self.operator == "hessian":
            swept = {row: factor for row, factor in factors.items() if row not in probed}
        parts = []
        if swept:
            parts.append(self.workspace.sweep_estimate(self.kind, swept))
        if probed and self.probes is not None:
            parts.append(self.probes.estimate(self.operator, probed))
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]

    def result(self, factors: Factors | None = None, *, added: float = 0.0) -> RowEstimate:
        """The whole, or Σ over rows of factor × value; with a known number `added` to it."""
        judged = factors is None
        factors = self.whole if factors is None else factors
        estimate = self.estimate(factors)
        estimate = dataclasses.replace(estimate, value=estimate.value + added)
        uncertified = self._uncertified_rows(factors) if self.probes is None else []
        if uncertified:
            status, text = Status.GGN, ggn_text(self, uncertified)
            if estimate.unknown:
                status, text = Status.NOT_CONVERGED, f"{text.rstrip('.')}; {TOO_FEW}"
            return RowEstimate(estimate, "GGN", status, text, self.cost)
        status, text = Status.OK, ""
        if judged or not estimate.exact:
            text = how(self, factors)
            if estimate.unknown:
                status, text = Status.NOT_CONVERGED, f"{text}; {TOO_FEW}"
            elif judged and not self._precise(estimate):
                status, text = Status.NOT_CONVERGED, missed(self, estimate)
        if status is Status.OK and estimate.exact and (doubt := self._doubt(factors)):
            status, text = Status.UNCONFIRMED, f"{how(self, factors)}, but not confirmed: {doubt}"
        text = "; ".join(part for part in (text.rstrip("."), tied_text(self, factors)) if part)
        return RowEstimate(estimate, "Hessian", status, text, self.cost)

    def _doubt(self, factors: Factors) -> str:
        """What a second look says against the exact value of one of these rows."""
        doubts = self.workspace.run(NEEDS[self.kind]).doubts
        swept = [self.parameters[row] for row in factors if row not in self.probed]
        names = [name for name in swept if name in doubts]
        return f"{names[0]!r}: {doubts[names[0]]}" if names else ""

    @property
    def cost(self) -> Cost:
        """The work of the sweep and of the probes that these rows use."""
        sweep = self.workspace.sweep_cost if self.workspace.swept else Cost()
        return sweep + (Cost() if self.probes is None else self.probes.cost)

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
        parts = []
        if not (layer in self.probed and self.operator == "hessian"):
            neurons = estimates_of_columns(self.workspace.sweep_neurons(layer).tolist())
            if self.workspace.sweep_estimate("rho", {layer: 1.0}).unknown:
                neurons = [dataclasses.replace(each, variance=math.inf) for each in neurons]
            parts.append(neurons)
        if layer in self.probed:
            parts.append(self._probes.neurons(self.operator, layer))
        return parts[0] if len(parts) == 1 else [a + b for a, b in zip(*parts, strict=True)]


def estimate_rows(
    workspace: Workspace, kind: RowKind, parameters: Mapping[str, str], whole: Factors
) -> RowEstimator:
    """The rows of a kind to the workspace's precision, computed once per distinct request."""
    key = (kind, tuple(sorted(whole.items())))
    if key not in workspace.cache:
        workspace.cache[key] = RowEstimator(workspace, kind, parameters, whole)
    estimator: RowEstimator = workspace.cache[key]
    return estimator
