"""The backward part of a pass: every layer contracts its per-sample gradients as they arrive.

For each factor column s_k of the output Hessian one backward pass of ⟨s_k, z⟩ reaches every layer.
With many outputs a few probes Σ_k ±s_k, with independent random signs for every sample, replace all
columns: their error falls with the number of samples.
Columns are scaled to size 1 per sample before the backward, and the result is scaled back in
float64, so that a confident network, whose columns are 1e-13 or smaller, loses no digits.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...math import contractions
from ...math.contractions import gradient_trace
from ...math.curvature import OrderedColumns, SignedColumn, SoftmaxCurvature
from ...math.positions import OutputCurvature
from ...math.signs import random_signs
from ...model import batches as _batches
from ...model.autograd_graph import shape_of_graph
from ...model.batches import BatchLocation
from ...model.layer_hooks import LayerUse, recording_uses
from ...model.layers import (
    AbstractLayerGradients,
    AbstractMatrixGradients,
    AbstractMatrixRule,
    ContractionRequest,
    KappaWeight,
    LayerMatrix,
    PatchGradients,
)
from ...model.linearity import InPlaceWatch, bends
from ...model.surface import Surface
from ..plan import MeasuringPlan
from ..precision import EXACT_COLUMNS
from ..routes import Route, Routing, find_routing, hidden_parameters
from ..rule_check import RuleCheck, check_rules
from ..uses import complete_uses
from ..weight_space.trusted_derivatives import refuse_hidden_uses
from .elements import Elements
from .feature_scales import Scales, by_column
from .footprint import columns_to_hold
from .listeners import AbstractListener, ChunkRows, InputListener, OutputListener, at_least_float
from .per_sample import per_sample_gradients
from .pulling import Listening, Pulling, columns_per_backward
from .sums import ChunkValues, SweepSums
from .witnesses import Witnesses


@dataclasses.dataclass(frozen=True)
class Probes:
    """Random signs in place of factor columns: which streams of them, and for which samples."""

    seed: int
    streams: range
    offset: int  # number of samples in the processes before this one
    leading: int = 0  # columns of the most likely classes, which are taken as they are
    of_elements: bool = (
        False  # the signs are of elementwise functions' columns, not of the outputs'
    )


class Sweep:
    """Runs one forward and all factor columns of each chunk, and adds them to `sums`."""

    def __init__(
        self,
        surface: Surface,
        plan: MeasuringPlan,
        *,
        kappa: bool,
        rho: bool,
        probes: Probes | None = None,
        scales: Scales | None = None,
        memory: int = 0,
        elements: bool = False,
    ) -> None:
        """`kappa` and `rho` say what to compute besides the trace; `probes` replace the columns.

        With `scales`, κ is also computed with features divided by these. `memory` is what a chunk
        may take; with none of it columns go one by one. `elements` adds columns of elementwise
        functions, in sums of their own.
        """
        self.memory = memory
        scales = scales or {}
        self.surface, self.plan, self.rho, self.probes = surface, plan, rho, probes
        rows: dict[str, Iterable[str]] = {
            "trace": surface.parameters,
            "kappa": surface.matrices,
            "rho": surface.matrices,
        }
        rows |= dict.fromkeys(scales, surface.layers.matrix_rules)
        count = None if probes is None else len(probes.streams)
        leading = 0 if probes is None else probes.leading
        signed = probes is not None and probes.of_elements
        self.sums = SweepSums(rows, surface.device, count, leading, signed=signed)
        self.num_columns = plan.num_columns if probes is None else 1
        self.names = {id(p): name for name, p in surface.parameters.items()}
        self.bends: dict[str, str] = {}  # parameters that bend the outputs, and by what function
        self.elements: Elements | None = None
        if elements:
            self.elements = Elements(surface, self.names, SweepSums(rows, surface.device))
        self.witnesses = Witnesses(self.sums)  # for a second look
        self.seen: set[Hashable] = set()  # what the chunks and their graphs look like
        self._rules = plan.rules
        self.request = ContractionRequest(kappa=kappa, num_columns=self.num_columns)
        self.weights: dict[str, LayerMatrix] = {}
        for layer, weight in surface.matrices.items():
            matrix = at_least_float(weight.of(weight.parameter.detach()))
            kappas = {"kappa": KappaWeight.of(matrix)} if kappa else {}
            for kind, of_layers in scales.items():
                if layer in of_layers:  # a layer that is never called has no features
                    kappas[kind] = KappaWeight.of(matrix, by_column(of_layers[layer], matrix))
            self.weights[layer] = LayerMatrix(matrix, kappas, weight.neurons, rho)
            count = matrix.shape[0] * weight.neurons
            self.sums.neurons[layer] = torch.zeros(
                self.sums.num_probes or 1, count, dtype=torch.float64, device=matrix.device
            )
            if self.elements is not None:
                self.elements.sums.neurons[layer] = torch.zeros_like(self.sums.neurons[layer])
        self.measured = frozenset(self.weights)  # layers with κ and ρ, as far as these are computed
        self.modules = {
            layer: surface.layers.module(layer)
            for layer in surface.layers.rules
            if surface.layers.measured_names(layer)
        }

    def finish(self) -> None:
        """After the last chunk: let go what is as large as the weights."""
        self.weights.clear()

    def run(
        self, batch: Any, where: BatchLocation, watch: nn.Module | None
    ) -> tuple[Tensor, Tensor, OutputCurvature]:
        """Forward, all factor columns, and the sums over this chunk."""
        surface = self.surface
        inputs = frozenset(self.weights) if self.rho else frozenset()
        in_place = InPlaceWatch() if self.plan.writes_slices else None
        count = _batches.num_samples(batch) if self.plan.repeats else 1
        with (
            torch.enable_grad(),
            recording_uses(self.modules, inputs=inputs, num_samples=count) as recorded,
            in_place or contextlib.nullcontext(),
            surface.numbers.fast(),
        ):
            outputs, targets = surface.outputs(batch, where=where, watch=watch)
        try:
            with torch.no_grad():
                linear_slices = in_place is not None and in_place.is_linear
                if self.elements is None:
                    self.bends |= bends(outputs, self.names, linear_slices=linear_slices)
                else:
                    self.bends |= self.elements.find(outputs, linear_slices=linear_slices)
                complete_uses(surface, recorded, outputs)
                routing = self._routing(recorded.uses, outputs)
                graph = shape_of_graph(outputs, self.names)
                self.seen.add((graph, _batches.form_of(batch)))
                hidden = hidden_parameters(recorded.uses, routing)
                refuse_hidden_uses(surface, batch, where, outputs, hidden)
                curvature = surface.loss.curvature(outputs.detach().double(), targets)
                generic = [name for name, route in routing.routes.items() if route == "generic"]
                if self.elements is not None:
                    self.elements.weigh(outputs, targets, generic)
                rows = self.new_rows(len(outputs))
                pulling = self._pulling(outputs, recorded.uses, routing, rows, graph)
                draws = []
                for columns in self._draws(curvature, where, len(outputs)):
                    with surface.numbers.fast():
                        pulled = pulling.pull(columns, keep=bool(generic))
                        if generic:
                            with recorded.paused():
                                self._contract_generic(generic, pulled, batch, rows)
                        draws.append(_collected(recorded.uses, rows, outputs.device))
                if self.elements is not None and self.probes is not None:
                    for stream in self.probes.streams:
                        index = self._numbers(where, len(outputs))
                        with surface.numbers.fast():
                            self.elements.pull_probe(pulling, self.probes.seed, stream, index)
                            draws.append(_collected(recorded.uses, rows, outputs.device))
                weights = surface.loss.weights(outputs.detach(), targets).double()
                self.sums.add(draws, weights)
                values = draws[0]
                if self.elements is not None and self.probes is None:
                    with surface.numbers.fast():
                        self.elements.pull(pulling, checked=True)
                        values = values + _collected(recorded.uses, rows, outputs.device)
                        self.elements.pull(pulling, checked=False)
                    rest = _collected(recorded.uses, rows, outputs.device)
                    self.elements.sums.add([values + rest], weights)
                # what probes or a faster arithmetic give to a sample is not its value
                self.witnesses.offer(values, batch, where, self.kinds if self.exact else ())
        finally:
            recorded.close()
            if self.elements is not None:
                self.elements.forget()
        return outputs.detach(), targets, curvature

    @property
    def uncertified(self) -> dict[str, str]:
        """Parameters whose Hessian no sums have, and by what function they bend."""
        return self.bends if self.elements is None or self.elements.others else {}

    def new_rows(self, num_samples: int) -> ChunkRows:
        """Where the values of a chunk are collected."""
        return ChunkRows(self.sums, num_samples)

    @property
    def exact(self) -> bool:
        """Whether the values of single samples are exact, as far as the certificate holds."""
        return self.probes is None and self.surface.numbers.arithmetic == "full"

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of rows that a second look can compare."""
        return ("trace", *["kappa"] * self.request.kappa, *["rho"] * self.rho)

    def _routing(self, uses: list[LayerUse], outputs: Tensor) -> Routing:
        """The routes of this chunk, whose samples may do other things than the first ones."""
        plan = self.plan
        routing = find_routing(
            self.surface,
            uses,
            outputs,
            expected=plan.layouts,
            trusted=plan.signature,
            seed=len(outputs),
        )
        if self._rules.unseen:
            later = check_rules(self.surface, uses, routing, outputs, self._rules.unseen)
            self._rules = RuleCheck(self._rules.wrong | later.wrong, later.unseen)
        for name in self._rules.wrong:
            if routing.routes[name] != "unused":
                routing.routes[name] = "generic"
        return routing

    def _draws(
        self, curvature: OutputCurvature, where: BatchLocation, num_samples: int
    ) -> Iterator[Iterable[SignedColumn]]:
        """All factor columns at once, or the leading ones and, by probe, what replaces others."""
        if self.probes is None:
            yield curvature.columns()
            return
        if self.probes.of_elements:
            return
        ordered, leading = None, self.probes.leading
        if isinstance(curvature, SoftmaxCurvature) and curvature.num_columns > EXACT_COLUMNS:
            ordered = OrderedColumns(curvature)
            self.sums.add_left(ordered)
            yield from ([ordered.column(rank)] for rank in range(leading))
        else:
            self.sums.left += torch.inf
        index = self._numbers(where, num_samples)
        for stream in self.probes.streams:
            signs = random_signs(
                self.probes.seed, stream, index, curvature.num_signs, torch.float64
            )
            yield curvature.probe(signs) if ordered is None else [ordered.probe(signs, leading)]

    def _numbers(self, where: BatchLocation, count: int) -> Tensor:
        """Those of the samples of a chunk, in the data of all processes."""
        offset = 0 if self.probes is None else self.probes.offset
        return (offset + where.first + torch.arange(count)).to(self.surface.device)

    def _pulling(
        self,
        outputs: Tensor,
        uses: list[LayerUse],
        routing: Routing,
        rows: ChunkRows,
        graph: int,
    ) -> Pulling:
        """What pulls columns back to the listeners of this chunk."""
        listening = self._listen(uses, routing, rows)
        size = sum(each.num_bytes for each in listening)
        return Pulling(
            self.surface,
            outputs,
            listening,
            uses,
            rows,
            at_once=columns_per_backward(self.surface, size, self.num_columns, self.memory),
            after_column=lambda: self._contract_sums(rows),
            graph=graph,
        )

    def _listen(self, uses: list[LayerUse], routing: Routing, rows: ChunkRows) -> list[Listening]:
        """Attach a listener to each use; returns them with the edges a backward must reach."""
        listening = []
        routes = routing.routes
        for use, layout in zip(uses, routing.layouts, strict=True):
            named = {k: n for k, n in use.names.items() if routes[n] in ("single", "sum")}
            if use.edge is None or use.rule is None or layout is None or not named:
                continue
            a = at_least_float(use.input)
            request = self.request_for(named, use, routes)
            gradients = use.rule.prepare(use.module, a, use.output.shape, layout, request)
            hold = self._hold(gradients, use.output, named, routes)
            weight = self.weights.get(use.layer) if request.contract else None
            use.on_output = OutputListener(rows, use, hold, routes, gradients, named, weight)
            size = use.output.numel() * use.output.element_size()
            listening.append(Listening(use.edge, use.on_output, use, "on_output", size))
            if self._rho_from_input(gradients, use.layer, request):
                use.on_input = InputListener(rows, use, hold, gradients)
                assert use.input_edge is not None
                size = use.input.numel() * use.input.element_size()
                listening.append(Listening(use.input_edge, use.on_input, use, "on_input", size))
        return listening

    def _hold(
        self,
        gradients: AbstractLayerGradients,
        output: Tensor,
        named: dict[str, str],
        routes: Mapping[str, Route],
    ) -> int:
        """How many columns to collect before contracting them together."""
        if any(routes[name] == "sum" for name in named.values()):
            return 1  # several uses are added up column by column
        if isinstance(gradients, PatchGradients) and gradients.form == "direct":
            return contractions.direct_columns(gradients.shape, self.num_columns)
        on_cpu = self.surface.device.type == "cpu"
        if on_cpu and not isinstance(gradients, PatchGradients):
            return 1
        return columns_to_hold(output.nbytes, self.num_columns, on_cpu=on_cpu)

    def request_for(
        self, named: dict[str, str], use: LayerUse, routes: Mapping[str, Route]
    ) -> ContractionRequest:
        """What to compute for a use: contractions only if its weight is used once."""
        weight = named.get("weight")
        single = weight is not None and routes[weight] == "single"
        single = single and isinstance(use.rule, AbstractMatrixRule) and use.layer in self.weights
        inverses = self._inverses(use.layer) if single else {}
        # the gradient at the input of an operation is not heard, so ρ needs that of the weight
        direct = use.is_operation and self.rho
        return dataclasses.replace(self.request, contract=single, inverses=inverses, direct=direct)

    def _inverses(self, layer: str) -> Mapping[str, Tensor]:
        kappas = self.weights[layer].kappas if layer in self.weights else {}
        return {kind: r.inverse for kind, r in kappas.items() if r.inverse is not None}

    def _rho_from_input(
        self, gradients: AbstractLayerGradients, layer: str, request: ContractionRequest
    ) -> bool:
        return (
            self.rho
            and isinstance(gradients, AbstractMatrixGradients)
            and gradients.needs_input_gradient
            and request.contract
            and layer in self.weights
        )

    def _contract_sums(self, rows: ChunkRows) -> None:
        """Weights used several times: G was added up over the uses of this column."""
        for name, G in rows.pending.items():
            self._contract_formed(name, G, rows, rows.factor[:, None])
        rows.pending.clear()

    def _contract_generic(
        self,
        names: list[str],
        units_and_factors: list[tuple[Tensor, Tensor]],
        batch: Any,
        rows: ChunkRows,
    ) -> None:
        columns = torch.stack([unit for unit, _ in units_and_factors], dim=1)
        factors = torch.stack([factor for _, factor in units_and_factors], dim=1)
        # vmap was tried with the parameters of the plan; for others one sample at a time is safe
        planned = all(self.plan.routes[name] == "generic" for name in names)
        gradients = per_sample_gradients(
            self.surface, names, batch, columns, vectorize=self.plan.vectorize and planned
        )
        for name, G in gradients.items():
            self._contract_formed(name, at_least_float(G), rows, factors)

    def _contract_formed(self, name: str, G: Tensor, rows: ChunkRows, factor: Tensor) -> None:
        """Contract per-sample gradients of shape (N, B, *parameter)."""
        row = self.surface.layers.row_of(name)
        if row not in self.weights:
            rows.add_trace(name, gradient_trace(G), factor)
            return
        matrix = self.surface.matrices[row].of(G)
        rows.add(name, row, [self.weights[row].contract(matrix, factor)])


def _collected(uses: list[LayerUse], rows: ChunkRows, device: torch.device) -> ChunkValues:
    """The values of the columns so far, those included that listeners still hold."""
    for use in uses:
        for listener in (use.on_output, use.on_input):
            if isinstance(listener, AbstractListener):
                listener.flush()
    return rows.collect(device)
