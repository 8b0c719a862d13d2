"""Choose how a trace, κ or ρ is computed, and spend probes on it until it is precise enough.

Rows are parameters (trace) or layers (κ, ρ). The sweep gives their GGN values, exactly or by output
probes, and the Hessian's where the certificate holds. For the other rows the residual H − GGN is
estimated with sample probes in a large network, with weight probes in a small one or where these do
not apply. If a few of both show that the residual varies as much as the Hessian itself, as it does
far from a minimum, the Hessian is probed instead. If nearly all weights of a large network bend, it
is probed first, and the sweep may be needless. Where elementwise functions alone bend them, probes
of these take over if that costs less. In a tiny network a product with every direction does.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from ..ground.errors import NotApplicable
from .data_pass import NEEDS
from .element_probes import instead_of
from .estimate import Estimate
from .precision import Precision
from .prices import first_sample_probes
from .purse import PASS, PRODUCT, OverBudget
from .refine import (
    GROWTH,
    AbstractDraws,
    Outlook,
    first_look,
    is_precise,
    promised_count,
    refine,
    sufficient_count,
)
from .row_probes import AbstractRowProbes
from .sample_probes import SampleProbes
from .shared_probes import shared_probes, sketch_size
from .sweep.sums import Factors, RowKind
from .weight_space.chunk_products import Operator
from .weight_space.probes import PILOT, WeightProbes
from .weight_space.products import SMALL
from .workspace import Workspace

# A sample probe costs 1.1 forward-backwards, and two of the residual 3, before a sweep of at least
# 5: up to so many of the Hessian are drawn without looking at the residual.
A_FEW_SAMPLE_PROBES, SWEEP = 24, 5
# A look at weight probes costs 13, so many must be needed. And these vary less only where the noise
# of the samples has rank one: in so much of the weights at least.
MANY_SAMPLE_PROBES, RANK_ONE, TELLING = 48, 0.1, 8  # and so many tell how many are needed
WEIGHT_PROBE = 2  # what one costs, in sample probes: a product needs the gradients of all weights
SECOND_GLANCE = 6 * PILOT  # if at least this many probes are still needed, compare 32 of each


class RowProbing:
    """Rows of one kind, and the probes that bring their sum `whole` to the precision asked for."""

    def __init__(
        self, workspace: Workspace, kind: RowKind, parameters: Mapping[str, str], whole: Factors
    ):
        """`parameters` gives the parameter of every row."""
        self.workspace, self.kind, self.whole = workspace, kind, whole
        self.parameters = dict(parameters)
        self.precision = workspace.precision
        self.probes: AbstractRowProbes | None = None
        self.operator: Operator = "hessian"
        self.probed: tuple[str, ...] = ()  # rows whose value needs weight probes
        self.not_by_samples = ""  # why sample probes do not apply
        self.compared = ""  # how the variances of residual and Hessian compare, for the report
        self._run()
        if workspace.swept and self.probes is None:  # products were checked before they were used
            _ = workspace.run(NEEDS[kind]).doubts  # refuses a gradient that is not the loss's

    # -- the choice --------------------------------------------------------------------------

    def _run(self) -> None:
        way = self.precision.way
        if not way.ggn:
            self.probed = tuple(self.parameters)
            probes = self._take_weight_probes()
            if way.sketch and probes.exact_part is None:
                probes.sketch("hessian", sketch_size(self.precision))
            self._refine("hessian")
            return
        if not self.workspace.swept and self.workspace.sweep_can_wait:
            self.probed = tuple(self.parameters)
            if self._run_sample_probes():
                return
        self.workspace.run(NEEDS[self.kind])
        uncertified = self.uncertified(self.parameters)
        if not way.residual or not uncertified:
            self.probed = ()
            self._sweep(self.precision.rtol)
            return
        self.probed = tuple(uncertified)
        large = way.sample_probes == "always" or (way.sample_probes == "large" and self._is_large())
        if large and not self.not_by_samples and self._run_sample_probes():
            return
        self._sweep(self.precision.rtol / 2)
        probes = self._take_weight_probes()
        if probes.complete("hessian") or self.all_are_few(PILOT):
            self.take_all()
            return
        if not way.hessian or probes.few:
            # A choice by the spread of a few probes, whose mean is the result, would favour those
            # that are small by chance.
            self._refine("residual")
            return
        self._choose()
        self._refine(self.operator)

    def _take_weight_probes(self) -> WeightProbes:
        self.probes = probes = shared_probes(self.workspace, self.kind, self.probed)
        if (purse := self.precision.purse) is not None:
            count = min(PILOT, probes.directions or PILOT) - probes.passes
            purse.claim(PASS + PRODUCT * count, f"weight probes for {self.kind}")
        return probes

    def _is_large(self) -> bool:
        """Whether sample probes pay: in a small network they have heavy tails, and cost no less."""
        return self._size() > SMALL

    def _size(self) -> int:
        parameters = self.workspace.surface.parameters
        return sum(parameters[self.parameters[row]].numel() for row in self.probed)

    def _run_sample_probes(self) -> bool:
        """Whether sample probes apply; if they do, until the rows are precise enough."""
        workspace, kind, probed = self.workspace, self.kind, self.probed
        try:
            self.probes = workspace.once(
                ("sample probes", kind, probed),
                lambda: SampleProbes(workspace, kind, probed, self.parameters),
            )
            self._choose_by_samples()
            if self.operator == "residual" or len(self.probed) < len(self.parameters):
                self._sweep(self.precision.rtol / 2)
            if self._weight_probes_are_better():
                self.probes, self.not_by_samples = None, "sample probes vary too much"
                return False
            self._refine(self.operator)
        except OverBudget:
            raise
        except NotApplicable as reason:
            self.probes, self.not_by_samples = None, f"no sample probes: {reason}"
        return self.probes is not None

    def _choose_by_samples(self) -> None:
        """The Hessian if a few probes of it suffice; otherwise whichever varies less."""
        if (purse := self.precision.purse) is not None:  # a comparison is as dear as the probes
            known = self.workspace.swept and not self.workspace.probed
            self.operator = "residual" if known else "hessian"
            if not self._probes.operators:
                first = first_sample_probes(self._size(), self.workspace.num_samples)
                purse.claim(PASS + PRODUCT * first, f"sample probes for {self.kind}")
                self._probes.draw([self.operator], first)
            return
        self._draw_pilot("hessian")
        self.operator = "hessian"
        whole = len(self.probed) == len(self.parameters)  # the residual needs a sweep besides
        if whole:
            refine(FewProbes(self), FewProbes.budget(self.precision))
            if self._converged():
                return
        self._draw_pilot("residual")
        self._take_less_varying(price=whole * (SWEEP + self._probes.count("hessian")))

    def _weight_probes_are_better(self) -> bool:
        """Where many sample probes are still needed, whether weight probes would be cheaper.

        Few samples with large gradients may decide: then noise of the weights varies less.
        """
        samples, operator, judged = self._probes, self.operator, self.of_probed(self.whole)
        assert isinstance(samples, SampleProbes)
        if self.precision.purse is not None or samples.rank_one < RANK_ONE or not self._many():
            return False
        more = min(TELLING - samples.count(operator), self.precision.max_passes - samples.passes)
        if more >= samples.least:  # two alone say little about how many are needed
            samples.draw([operator], more)
        if not self._many():
            return False
        rival = shared_probes(self.workspace, self.kind, self.probed)
        rival.draw_glance([operator], self.precision.max_passes)
        ours = samples.spread(operator, judged, samples.common)
        return WEIGHT_PROBE * rival.spread(operator, judged, rival.count(operator)) < ours

    def _many(self) -> bool:
        """Whether many sample probes are still needed, and others may take their place."""
        enough = not self.precision.way.cheapest or self._converged()
        return not enough and self.sufficient() >= MANY_SAMPLE_PROBES

    def _choose(self) -> None:
        """Probe the residual or the Hessian, whichever varies less.

        A few probes show a large difference. A small one matters only if many probes will follow,
        and then more probes of both are cheap by comparison.
        """
        probes = shared_probes(self.workspace, self.kind, self.probed)
        probes.draw_glance(["residual", "hessian"], self.precision.max_passes)
        self._take_less_varying()
        self._draw_pilot(self.operator)
        if probes.pilot == probes.glance or self._converged():
            return
        if min(self.sufficient(), self.precision.max_passes) >= SECOND_GLANCE:
            self._draw_pilot("hessian" if self.operator == "residual" else "residual")
            self._take_less_varying()

    def _take_less_varying(self, price: float = 0.0) -> None:
        """`price` is how many probes the residual must save, where it costs more than its own."""
        judged, count = self.of_probed(self.whole), self._probes.common
        residual = self._probes.spread("residual", judged, count)
        hessian = self._probes.spread("hessian", judged, count)
        without_variance = 1.0 if residual == hessian else math.inf  # if the Hessian has none
        share = residual / hessian if hessian else without_variance
        pays = not price or (1 - share) * self.sufficient() > price
        self.operator = "residual" if residual <= hessian and pays else "hessian"
        self.compared = f"{share:.2g} of the Hessian's variance in {count} probes of each"

    def uncertified(self, rows: Mapping[str, str] | Factors) -> list[str]:
        """The rows among these in whose parameters the outputs may bend."""
        certificates = self.workspace.certificates
        return [row for row in rows if not certificates[self.parameters[row]].linear]

    # -- spending probes ---------------------------------------------------------------------

    @property
    def _probes(self) -> AbstractRowProbes:
        assert self.probes is not None
        return self.probes

    def _sweep(self, rtol: float) -> None:
        """Compute the GGN's rows, with output probes until the whole is precise enough."""
        self.workspace.sweep_to(NEEDS[self.kind], self.kind, self.whole, rtol)

    def _refine(self, operator: Operator) -> None:
        self.operator = operator
        rows = self.workspace, self.kind, self.of_probed(self.whole)
        if found := instead_of(self._probes, operator, self.draws(), *rows):
            self.probes, self.operator, self.compared = found, "residual", found.compared
            self._sweep(self.precision.rtol / 2)
        refine(self.draws(), self.precision)

    def _draw_pilot(self, operator: Operator) -> None:
        first_look(RowDraws(self, operator), self.precision)

    def all_are_few(self, most: float) -> bool:
        """Whether all directions are at most so many, and as many products are left."""
        size = self._probes.directions
        if size is None or not self.precision.way.cheapest:
            return False
        return size <= min(most, self.precision.max_passes - self._probes.passes)

    def take_all(self) -> None:
        """A product with every direction instead of random ones."""
        self.operator = "hessian"
        if not self._probes.complete("hessian"):
            self._probes.take_all("hessian")

    def draws(self, added: float = 0.0) -> AbstractDraws:
        """What the precision of the whole depends on: its probes, or the sweep without any.

        `added` is a known number that is at least 0, such as the term of a weight decay.
        """
        if self.probes is None:  # the GGN's rows are none below 0, and the number only helps
            return self.workspace.sweep_rows(self.kind, self.whole)
        return RowDraws(self, self.operator, added)

    def sufficient(self) -> float:
        """How many probes would bring the whole within the tolerance."""
        return sufficient_count(self.draws(), self.precision)

    def _converged(self) -> bool:
        return is_precise(self.estimate(self.whole), self.precision)

    # -- what is known so far ----------------------------------------------------------------

    def of_probed(self, factors: Factors) -> dict[str, float]:
        """The factors of the rows that need probes."""
        return {row: factor for row, factor in factors.items() if row in self.probed}

    def estimate(self, factors: Factors) -> Estimate:
        """Σ over rows of factor × value, from the sweep and the probes so far."""
        parts = self._parts(factors, self.operator)
        if len(parts) == 1:
            return parts[0]
        whole = parts[0] + parts[1]
        if self.operator == "residual" and "hessian" in self._probes.operators:
            direct = sum(self._parts(factors, "hessian"), start=Estimate(0.0, data_variance=0.0))
            return whole.with_data_error(parts[0], parts[1], direct)
        return whole

    def _parts(self, factors: Factors, operator: Operator) -> list[Estimate]:
        """What the sweep and the probes of an operator give."""
        swept, probed, parts = factors, self.of_probed(factors), []
        if self.probes is not None and operator == "hessian":
            swept = {row: factor for row, factor in factors.items() if row not in probed}
        if swept:
            parts.append(self.workspace.sweep_estimate(self.kind, swept))
        if probed and self.probes is not None:
            parts.append(self.probes.estimate(operator, probed))
        return parts


class RowDraws(AbstractDraws):
    """The probes of an operator, and the sum of rows that they make more precise."""

    def __init__(self, rows: RowProbing, operator: Operator, added: float = 0.0) -> None:
        assert rows.probes is not None
        self.rows, self.operator, self.probes = rows, operator, rows.probes
        self._added, self.price = added, self.probes.price
        self.pilot, self.least = self.probes.pilot, self.probes.least
        # where groups of samples differ, a forward finds them, and each rounds its number up
        self.price_of_stage = PASS + 1 / 3 + PRODUCT

    @property
    def count(self) -> int:
        """Probes of this operator."""
        return self.probes.count(self.operator)

    @property
    def passes(self) -> int:
        """Probes of both operators."""
        return self.probes.passes

    @property
    def complete(self) -> bool:
        """Whether every direction was taken."""
        return self.probes.complete(self.rows.operator)

    def draw(self, count: int) -> None:
        """Draw more probes of this operator."""
        self.probes.draw([self.operator], count)

    def estimate(self) -> Estimate:
        """The whole, part of which the sweep may have found, and the known number."""
        whole = self.rows.estimate(self.rows.whole)
        return dataclasses.replace(whole, value=whole.value + self._added)

    def drawn_part(self) -> Estimate:
        """The rows that need probes."""
        return self.probes.estimate(self.operator, self.rows.of_probed(self.rows.whole))

    def next_stage(self, estimate: Estimate, enough: float) -> int:
        """How many probes to have next; two more where there is no interval often give one."""
        return self.count + 2 if estimate.unknown else super().next_stage(estimate, enough)

    def shortcut(self, outlook: Outlook) -> bool:
        """Every direction, where these are fewer than the probes ahead."""
        if not self.rows.all_are_few(outlook.enough - self.count):
            return False
        self.rows.take_all()
        return True

    @property
    def exact_at(self) -> float:
        """The number of passes with which every direction, or every element, is taken."""
        elements = self.rows.workspace.elements_at
        directions = (self.probes.directions or math.inf) + 2 * PILOT  # after one of both operators
        return min(directions, elements) if self.rows.precision.way.cheapest else math.inf

    def promised(self, enough: float, estimate: Estimate) -> int:
        """Their errors are not widened for values that are too small by chance."""
        return promised_count(enough, estimate)

    def passes_for(self, count: int) -> int:
        """Passes for so many probes, with those of the other operator."""
        others = self.passes - self.count
        if self.rows.compared and count >= SECOND_GLANCE:
            others = max(others, self.probes.pilot)  # the other operator is then probed too
        return count + others

    def out_of_reach(self, asked: Precision) -> str:
        """What to do where more probes of the rest do not help."""
        return "The output probes alone exceed it: use method='exact', or a larger rtol."


class FewProbes(RowDraws):
    """A few sample probes of the Hessian, and no more if these will not do."""

    def __init__(self, rows: RowProbing) -> None:
        super().__init__(rows, "hessian")

    @staticmethod
    def budget(asked: Precision) -> Precision:
        """The precision asked for, with passes for a few probes only."""
        return dataclasses.replace(asked, max_passes=min(A_FEW_SAMPLE_PROBES, asked.max_passes))

    @property
    def complete(self) -> bool:
        """Whether more than a few would be needed."""
        if self.estimate().unknown:
            return False
        budget = self.budget(self.rows.precision)
        trusted = 1 if self.count >= TELLING else GROWTH  # two alone say little
        return 1.05 * sufficient_count(self, budget) > trusted * budget.max_passes

    def next_stage(self, estimate: Estimate, enough: float) -> int:
        """All that seem to be needed; without an interval, as many as often give one."""
        if estimate.unknown:
            return self.count + self.least
        return math.ceil(1.05 * min(enough, GROWTH * self.count)) - (self.passes - self.count)
