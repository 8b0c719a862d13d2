"""Probes of the Hessian with noise of its own for every sample, injected where a layer acts.

A probe of the weights is one draw for the whole data, so its error does not fall with the number of
samples. Here the noise is added to the outputs y_t = W a_t of a layer instead, another one for each
sample n. With e the added noise and v_t = ξ_n a_t its direction,

    E[vᵀ (∂²ℓ_n/∂e²) v] = E⟨ξ_n, H_n ξ_n⟩

for any random matrix ξ in the shape of the weight: with E[ξ ξᵀ] = 1 the trace of sample n's
Hessian in this weight, and with columns of covariance W Wᵀ its κ. Signs of the sample before and
after one matrix of signs for all samples are enough, so no matrix is formed for a sample, nor a
gradient of a weight. One double backward in the outputs of all layers gives a
value for every sample and layer, since the noise of different layers is independent. The error
follows from the spread within the samples.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..ground.errors import NotApplicable
from ..model import batches as _batches
from ..model.arithmetic import full_precision
from ..model.batches import BatchLocation
from ..model.layers.output_changes import (
    ColumnNoise,
    Noise,
    direction_at_output,
    scaled_columns,
)
from ..model.model_state import twice_differentiable
from ..records.measurements import Cost
from .estimate import Estimate
from .plan import MeasuringPlan
from .recorded_runs import Places, RecordedRuns, edges_of, second_derivatives
from .row_probes import AbstractRowProbes
from .sample_draws import KeptChunk, SampleDraws, Slots
from .sample_noise import SampleNoise
from .sweep.listeners import at_least_float
from .sweep.probed_rows import SampleNumbers
from .sweep.sums import FEW, Factors, RowKind, cautious
from .weight_space.chunk_products import Operator
from .weight_space.products import SMALL
from .workspace import Workspace

# Degrees of freedom from which an interval is given, and how much of its relative error is added to
# it (`cautious`). In a small network noise has heavy tails, and estimates that are too small look
# too sure: with a share of 1 there, 87 to 92 % of the intervals held kappa of 8 and 16 samples.
CAUTION_IF_LARGE, CAUTION_IF_SMALL = (3, 1.0), (FEW, 2.0)
# Probes to start with, and to add, in a small network or on few samples. The values of a sample are
# skewed, those of a trained network by 3 to 4. Two of each that seem to tell their spread are those
# of which none is large: of 95 % intervals that rested on pairs, 57 to 90 % held the truth, and at
# least 90 % from four together, which on few samples take fewer probes in the end.
PILOT_IF_SKEWED, FEW_SAMPLES = 4, 32


class _ProbeValues(NamedTuple):
    """What one probe of a chunk gives."""

    rows: Tensor  # of every row and sample, shape: (rows, N)
    neurons: dict[str, Tensor]  # ρ(j) summed over the samples, by layer


class SampleProbes(AbstractRowProbes):
    """Probes of some rows: parameters for the trace, layers for κ and ρ."""

    text = "sample probes"
    glance = pilot = 2  # every sample has its own noise: two show how much they vary
    least = 2  # that are drawn at a time: the spread of one is unknown

    def __init__(
        self,
        workspace: Workspace,
        kind: RowKind,
        rows: Sequence[str],
        parameters: Mapping[str, str],
    ) -> None:
        """`parameters` gives the parameter of every row.

        Raises NotApplicable where noise at the outputs of layers does not do: for standardized
        features, and for parameters whose uses are not known.
        """
        self.workspace, self.kind = workspace, kind
        self.surface, self.plan = workspace.surface, workspace.plan
        self.row_of = {parameters[row]: row for row in rows}
        self.cost = Cost()
        self.values: dict[Operator, SampleDraws] = {}
        if kind not in ("trace", "kappa", "rho"):
            raise NotApplicable(f"noise at the outputs of layers does not give {kind}")
        if odd := self.unknown_uses(self.plan, self.row_of):
            raise NotApplicable(f"the uses of {odd[0]!r} are not known")
        if workspace.wanted_products not in ("auto", "reverse"):
            raise NotApplicable(f"they need products='reverse', not {workspace.wanted_products!r}")
        if workspace.product_method != "reverse":
            raise NotApplicable("autograd has no second derivatives of the model, or wrong ones")
        self._numbers = SampleNumbers(workspace)
        self._noise = SampleNoise(self.surface, kind, self.row_of, workspace.seed)
        self._runs = RecordedRuns(workspace, self.row_of)
        size = sum(self.surface.parameters[name].numel() for name in self.row_of)
        self._few, self._share = CAUTION_IF_LARGE if size > SMALL else CAUTION_IF_SMALL
        if size <= SMALL or workspace.num_samples < FEW_SAMPLES:
            self.glance = self.pilot = self.least = PILOT_IF_SKEWED

    @staticmethod
    def unknown_uses(plan: MeasuringPlan, names: Iterable[str]) -> list[str]:
        """The parameters among these for which it is not known where noise would go."""
        return [n for n in names if plan.routes[n] not in ("single", "sum", "unused")]

    @property
    def rank_one(self) -> float:
        """The share of the weights whose noise has rank one, and so varies more."""
        sizes = {name: self.surface.parameters[name].numel() for name in self.row_of}
        return sum(sizes[name] for name in self._noise.of_rank_one) / sum(sizes.values())

    def neurons(self, operator: Operator, row: str) -> list[Estimate]:
        """ρ(j) of a layer."""
        return self.values[operator].neurons(row)

    @property
    def operators(self) -> Collection[Operator]:
        """The operators that were probed so far."""
        return self.values

    # -- what was drawn ----------------------------------------------------------------------

    def count(self, operator: Operator) -> int:
        """Probes of an operator so far."""
        return round(self.values[operator].passes) if operator in self.values else 0

    @property
    def passes(self) -> int:
        """Probes of all operators."""
        return sum(map(self.count, self.values))

    def estimate(self, operator: Operator, factors: Factors) -> Estimate:
        """Σ over rows of factor × value."""
        return cautious(self.values[operator].estimate(factors), self._few, share=self._share)

    def spread(self, operator: Operator, factors: Factors, count: int) -> float:
        """The variance of one probe, from the first draws."""
        number, sums = self.values[operator].parts[0]
        return sums.estimate(factors, number).variance * number

    # -- drawing -----------------------------------------------------------------------------

    def draw(self, operators: Sequence[Operator], count: int) -> None:
        """Draw at least two more probes, with the same noise for each operator."""
        before = self.surface.cost
        drawn = [self.values.setdefault(operator, self._new_draws()) for operator in operators]
        if len(drawn) == 1 and drawn[0].can_be_divided:
            drawn[0].divide()
        if len(drawn) == 1 and drawn[0].groups is not None:
            self._draw_by_group(operators[0], drawn[0], drawn[0].groups.probes(count))
        else:
            self._draw_for_all(operators, count)
        self.cost += self.surface.processes.total_cost(self.surface.cost - before)

    def _draw_for_all(self, operators: Sequence[Operator], count: int) -> None:
        first = min(map(self.count, operators))
        number = min(self.values[operator].times for operator in operators)
        sums = {operator: self.values[operator].new_sums() for operator in operators}
        neurons = {operator: self._no_neurons(count) for operator in operators}
        # for ρ, whose neurons vary apart from each other, all samples get the same probes
        keeping = {
            operator: self.kind != "rho" and self.values[operator].keeps(self.workspace.num_samples)
            for operator in operators
        }
        kept: dict[Operator, list[KeptChunk]] = {operator: [] for operator in operators}
        with self.surface.processes.together(), full_precision(), twice_differentiable():
            for where, batch in self.surface.chunks(self.workspace.product_chunk):
                slots = Slots.of_all(_batches.num_samples(batch), first, count)
                noting = any(keeping.values())
                run = self._run(batch, where, slots, number, operators, noting=noting)
                found, weights, curvatures = run
                for operator, draws in found.items():
                    rows = [draw.rows for draw in draws]
                    sums[operator].add(rows, weights)
                    if keeping[operator]:
                        chunk = KeptChunk(torch.stack(rows).cpu(), weights.cpu(), curvatures)
                        kept[operator].append(chunk)
                    for i, draw in enumerate(draws):
                        for row, of_row in draw.neurons.items():
                            neurons[operator][row][i] += of_row
        for operator, total in sums.items():
            total.reduce(self.surface.processes)
            self.surface.processes.sum_(*neurons[operator].values())
            values_kept = kept[operator] if keeping[operator] else None
            self.values[operator].add(count, total, values_kept, neurons[operator])

    def _draw_by_group(self, operator: Operator, drawn: SampleDraws, counts: list[int]) -> None:
        """Another number of probes for each group of samples, in one pass over the data."""
        groups, surface = drawn.groups, self.surface
        assert groups is not None
        sums = [drawn.new_sums() for _ in counts]
        first = [drawn.count_of(group) for group in range(len(counts))]
        with surface.processes.together(), full_precision(), twice_differentiable():
            for where, batch in surface.chunks(self.workspace.product_chunk):
                with torch.no_grad():
                    curvatures = self._curvatures(*surface.outputs(batch, where=where))
                group_of = groups.of(curvatures)
                for group, count in enumerate(counts):
                    index = (group_of == group).nonzero().flatten()
                    if count == 0 or not len(index):
                        continue
                    slots = Slots.of_group(index, first[group], count, len(group_of))
                    assert slots.samples is not None
                    part = _batches.take(batch, slots.samples.to(surface.device))
                    found, weights, _ = self._run(part, where, slots, drawn.times, [operator])
                    values = [draw.rows for draw in found[operator]]
                    draws = slots.in_order(values, count, len(index))
                    sums[group].add(draws, weights[: len(index)])
        for total in sums:
            total.reduce(self.surface.processes)
        drawn.add_groups(counts, sums)

    def _new_draws(self) -> SampleDraws:
        return SampleDraws(list(self.row_of.values()), self.surface)

    def _run(
        self,
        batch: Any,
        where: BatchLocation,
        slots: Slots,
        number: int,
        operators: Sequence[Operator],
        noting: bool = False,
    ) -> tuple[dict[Operator, list[_ProbeValues]], Tensor, Tensor]:
        """The values of each operator in each round, the samples' weights and curvatures.

        `number` is that of the signs that all samples share. Without `noting` there are no
        curvatures.
        """
        surface, index = self.surface, slots.samples
        with self._runs.run(batch, where, index) as run:
            outputs, targets, places = run
            with torch.enable_grad():
                wide = outputs.double()
                total = surface.loss.values(wide, targets).sum()
            weights = surface.loss.weights(outputs.detach(), targets).double()
            curvatures = self._curvatures(outputs, targets) if noting else torch.zeros(0)
            if index is None:
                samples = self._numbers.of(where, len(outputs))
            else:
                samples = self._numbers.of(where, 1) + index.to(surface.device)
            draws, found = slots.draws.to(surface.device), {}
            for operator in operators:
                with surface.numbers.fast():
                    gradients = self._gradients(operator, total, wide, places)
                    found[operator] = [
                        self._values(gradients, places, samples, draws + i, number)
                        for i in range(slots.rounds)
                    ]
            return found, weights, curvatures

    def _curvatures(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """How curved the loss is at the outputs of each sample."""
        curvature = self.surface.loss.curvature(outputs.detach().double(), targets)
        return curvature.trace().reshape(len(outputs), -1).sum(dim=1).double().cpu()

    def _gradients(
        self,
        operator: Operator,
        total: Tensor,
        wide: Tensor,
        places: Places,
    ) -> list[Tensor | None]:
        value = total
        with torch.enable_grad():
            if operator == "residual":
                (signal,) = torch.autograd.grad(total, wide, retain_graph=True)
                value = (wide * signal.detach()).sum()
            self.surface.cost += Cost(backwards=len(wide))
            return list(
                torch.autograd.grad(value, edges_of(places), create_graph=True, allow_unused=True)
            )

    def _values(
        self,
        gradients: list[Tensor | None],
        places: Places,
        samples: Tensor,
        draws: Tensor,
        number: int,
    ) -> _ProbeValues:
        """⟨v, ∂²ℓ/∂e² v⟩ of every row and sample for one probe, shape (rows, N)."""
        noise = self._noise.of(samples, draws, number)
        with torch.enable_grad():
            along = [
                {
                    name: direction_at_output(use, layout, key, noise[name])
                    for key, name in use.names.items()
                    if name in self.row_of
                }
                for use, layout in places
            ]
        second = second_derivatives(places, gradients, [list(parts.values()) for parts in along])
        count = len(samples)
        if second is None:
            return self._together({}, samples)
        self.surface.cost += Cost(products=count)
        if self.kind == "rho":
            return self._by_neuron(places, second, noise, samples)
        sums: dict[str, Tensor] = {}
        for (_, layout), parts, image in zip(places, along, second, strict=True):
            if image is None:
                continue
            for name, v in parts.items():
                terms = layout.split(at_least_float(image) * at_least_float(v.detach()))
                of_use = terms.sum(dim=tuple(range(1, terms.dim())), dtype=torch.float64)
                sums[name] = sums[name] + of_use if name in sums else of_use
        return self._together(sums, samples)

    def _together(
        self, sums: Mapping[str, Tensor], samples: Tensor, neurons: dict[str, Tensor] | None = None
    ) -> _ProbeValues:
        """One row for each parameter, 0 where nothing came."""
        zero = torch.zeros(len(samples), dtype=torch.float64, device=samples.device)
        return _ProbeValues(torch.stack([sums.get(n, zero) for n in self.row_of]), neurons or {})

    def _by_neuron(
        self,
        places: Places,
        images: Sequence[Tensor | None],
        noise: Mapping[str, Noise],
        samples: Tensor,
    ) -> _ProbeValues:
        """ρ(j) of every neuron: v is linear in its sign, whose part of ⟨v, u⟩ is the neuron's."""
        own = {
            name: dataclasses.replace(each, signs=each.signs.detach().requires_grad_())
            for name, each in noise.items()
            if isinstance(each, ColumnNoise)
        }
        total: list[Tensor] = []
        with torch.enable_grad():
            for (use, layout), image in zip(places, images, strict=True):
                name = use.names.get("weight")
                if image is not None and name in own:
                    v = scaled_columns(use, use.input, layout, own[name])
                    total.append((at_least_float(v) * at_least_float(image)).sum())
        signs = [each.signs for each in own.values()]
        slopes = torch.autograd.grad(total, signs, allow_unused=True)
        neurons, sums = {}, {}
        for i, (name, slope) in enumerate(zip(own, slopes, strict=True)):
            if slope is not None:
                terms = slope.double() * signs[i].detach().double()
                sums[name] = terms.sum(dim=1)
                neurons[self.row_of[name]] = terms.sum(dim=0)
        return self._together(sums, samples, neurons)

    def _no_neurons(self, count: int) -> dict[str, Tensor]:
        """ρ(j) of every layer for some probes, still 0."""
        if self.kind != "rho":
            return {}
        sizes = {row: self._noise.signs_of(name)[0] for name, row in self.row_of.items()}
        zeros = {"dtype": torch.float64, "device": self.surface.device}
        return {row: torch.zeros(count, size, **zeros) for row, size in sizes.items()}  # type: ignore[call-overload]
