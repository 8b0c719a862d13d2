"""The backward part of a pass: every layer contracts its per-sample gradients as they arrive.

For each factor column s_k of the output Hessian one backward pass of ⟨s_k, z⟩ reaches every layer.
With many outputs a few probes Σ_k ±s_k, with independent random signs for every sample, replace all
columns: their error falls with the number of samples.
Columns are scaled to size 1 per sample before the backward, and the result is scaled back in
float64, so that a confident network, whose columns are 1e-13 or smaller, loses no digits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from ...math import contractions
from ...math.contractions import gradient_trace
from ...math.curvature import SignedColumn
from ...math.positions import OutputCurvature
from ...math.signs import random_signs
from ...model.batches import BatchLocation
from ...model.layer_hooks import LayerUse, deepest, recording_uses
from ...model.layers import (
    AbstractLayerGradients,
    AbstractMatrixGradients,
    ContractionRequest,
    KappaWeight,
    LayerMatrix,
    PatchGradients,
)
from ...model.surface import Surface
from ..plan import Plan, matrix_layers, rules_of
from .feature_scales import Scales, by_column
from .footprint import columns_to_hold
from .listeners import (
    AbstractListener,
    ChunkRows,
    InputListener,
    OutputListener,
    at_least_float,
)
from .per_sample import per_sample_gradients
from .sums import SweepSums


@dataclasses.dataclass(frozen=True)
class Probes:
    """Random signs in place of factor columns: which streams of them, and for which samples."""

    seed: int
    streams: range
    offset: int  # number of samples in the processes before this one


class Sweep:
    """Runs one forward and all factor columns of each chunk, and adds them to `sums`."""

    def __init__(
        self,
        surface: Surface,
        plan: Plan,
        *,
        kappa: bool,
        rho: bool,
        probes: Probes | None = None,
        scales: Scales | None = None,
    ) -> None:
        """`kappa` and `rho` say what to compute besides the trace; `probes` replace the columns.

        With `scales`, κ is also computed with features divided by these.
        """
        scales = scales or {}
        self.surface, self.plan, self.rho, self.probes = surface, plan, rho, probes
        self.sums = SweepSums(surface, None if probes is None else len(probes.streams), scales)
        self.num_columns = plan.num_columns if probes is None else 1
        self.rules = {
            layer: rule for layer, rule in rules_of(surface).items() if layer in plan.layouts
        }
        self.names = {id(p): name for name, p in surface.parameters.items()}
        self.request = ContractionRequest(kappa=kappa, num_columns=self.num_columns)
        self.weights: dict[str, LayerMatrix] = {}
        self.matrices = matrix_layers(surface)
        for layer, rule in self.matrices.items():
            module = surface.module(layer)
            matrix = rule.matrix(module, cast(Tensor, module.weight).detach())
            matrix = at_least_float(matrix)
            kappas = {"kappa": KappaWeight.of(matrix)} if kappa else {}
            for kind, of_layers in scales.items():
                if layer in of_layers:  # a layer that is never called has no features
                    kappas[kind] = KappaWeight.of(matrix, by_column(of_layers[layer], matrix))
            self.weights[layer] = LayerMatrix(matrix, kappas, rule.neurons(module), rho)
            count = matrix.shape[0] * rule.neurons(module)
            self.sums.neurons[layer] = torch.zeros(
                self.sums.num_probes or 1, count, dtype=torch.float64, device=matrix.device
            )
        self.modules = {
            layer: surface.module(layer) for layer in self.rules if self._ruled_names(layer)
        }

    def _ruled_names(self, layer: str) -> dict[str, str]:
        """Short to full name of the parameters of a layer that its rule handles."""
        of_module = self.surface.module(layer).named_parameters(recurse=False)
        named = {key: self.names[id(p)] for key, p in of_module if id(p) in self.names}
        return {k: n for k, n in named.items() if self.plan.routes[n] in ("single", "sum")}

    def run(
        self, batch: Any, where: BatchLocation, watch: nn.Module | None
    ) -> tuple[Tensor, Tensor, OutputCurvature]:
        """Forward, all factor columns, and the sums over this chunk."""
        surface = self.surface
        inputs = frozenset(self.weights) if self.rho else frozenset()
        with torch.enable_grad(), recording_uses(self.modules, inputs=inputs) as recorded:
            outputs, targets = surface.outputs(batch, where=where, watch=watch)
        try:
            with torch.no_grad():
                curvature = surface.loss.curvature(outputs.detach().double(), targets)
                rows = ChunkRows(self.sums, len(outputs))
                edges = self._listen(recorded.uses, rows)
                deep = deepest(outputs, edges) if edges else []
                draws = []
                for columns in self._draws(curvature, where, len(outputs)):
                    self._columns(outputs, columns, deep, rows, batch)
                    for use in recorded.uses:
                        for listener in (use.on_output, use.on_input):
                            if isinstance(listener, AbstractListener):
                                listener.flush()
                    draws.append(rows.collect(outputs.device))
                weights = surface.loss.weights(outputs.detach(), targets).double()
                self.sums.add(draws, weights)
        finally:
            recorded.close()
        return outputs.detach(), targets, curvature

    def _draws(
        self, curvature: OutputCurvature, where: BatchLocation, num_samples: int
    ) -> Iterator[Iterable[SignedColumn]]:
        """All factor columns at once, or what each probe replaces them with."""
        if self.probes is None:
            yield curvature.columns()
            return
        index = self.probes.offset + where.first + torch.arange(num_samples)
        index = index.to(self.surface.device)
        for stream in self.probes.streams:
            signs = random_signs(
                self.probes.seed, stream, index, curvature.num_signs, torch.float64
            )
            yield curvature.probe(signs)

    def _columns(
        self,
        outputs: Tensor,
        columns: Iterable[SignedColumn],
        deep: list[Any],
        rows: ChunkRows,
        batch: Any,
    ) -> None:
        generic = [name for name, route in self.plan.routes.items() if route == "generic"]
        units_and_factors: list[tuple[Tensor, Tensor]] = []  # for the generic route
        for column, sign in columns:
            size = column.abs().amax(dim=1, keepdim=True)
            unit = (column / torch.where(size > 0, size, torch.ones_like(size))).to(outputs.dtype)
            unit = unit.reshape(outputs.shape)
            rows.factor = sign * size.squeeze(1).square()
            if deep:
                self.surface.pull(outputs, unit, deep)
                self._contract_sums(rows)
            if generic:
                units_and_factors.append((unit, rows.factor))
        if generic:
            self._contract_generic(generic, batch, units_and_factors, rows)

    def _listen(self, uses: list[LayerUse], rows: ChunkRows) -> list[Any]:
        """Attach a listener to each use; returns the edges that the backward must reach."""
        edges = []
        for use in uses:
            named = self._ruled_names(use.layer)
            if use.edge is None:
                continue
            a = at_least_float(use.input)
            layout = dataclasses.replace(self.plan.layouts[use.layer], num_samples=rows.num_samples)
            request = self.request_for(named, use.layer)
            gradients = self.rules[use.layer].prepare(
                use.module, a, use.output.shape, layout, request
            )
            hold = self._hold(gradients, use.output, named)
            weight = self.weights.get(use.layer) if request.contract else None
            use.on_output = OutputListener(
                rows, use.layer, hold, self.plan.routes, gradients, named, weight
            )
            edges.append(use.edge)
            if self._rho_from_input(gradients, named, use.layer):
                use.on_input = InputListener(rows, use.layer, hold, gradients)
                assert use.input_edge is not None
                edges.append(use.input_edge)
        return edges

    def _hold(
        self, gradients: AbstractLayerGradients, output: Tensor, named: dict[str, str]
    ) -> int:
        """How many columns to collect before contracting them together."""
        if any(self.plan.routes[name] == "sum" for name in named.values()):
            return 1  # several uses are added up column by column
        if isinstance(gradients, PatchGradients) and gradients.form == "direct":
            return contractions.direct_columns(gradients.shape, self.num_columns)
        on_cpu = self.surface.device.type == "cpu"
        if on_cpu and not isinstance(gradients, PatchGradients):
            return 1
        return columns_to_hold(output.nbytes, self.num_columns, on_cpu=on_cpu)

    def request_for(self, named: dict[str, str], layer: str) -> ContractionRequest:
        """What to compute for a layer: contractions only if its weight is used once."""
        weight = named.get("weight")
        single = weight is not None and self.plan.routes[weight] == "single"
        inverses = self._inverses(layer) if single else {}
        return dataclasses.replace(self.request, contract=single, inverses=inverses)

    def _inverses(self, layer: str) -> Mapping[str, Tensor]:
        kappas = self.weights[layer].kappas if layer in self.weights else {}
        return {kind: r.inverse for kind, r in kappas.items() if r.inverse is not None}

    def _rho_from_input(
        self, gradients: AbstractLayerGradients, named: dict[str, str], layer: str
    ) -> bool:
        return (
            self.rho
            and isinstance(gradients, AbstractMatrixGradients)
            and gradients.needs_input_gradient
            and self.request_for(named, layer).contract
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
        batch: Any,
        units_and_factors: list[tuple[Tensor, Tensor]],
        rows: ChunkRows,
    ) -> None:
        columns = torch.stack([unit for unit, _ in units_and_factors], dim=1)
        factors = torch.stack([factor for _, factor in units_and_factors], dim=1)
        gradients = per_sample_gradients(
            self.surface, names, batch, columns, vectorize=self.plan.vectorize
        )
        for name, G in gradients.items():
            self._contract_formed(name, at_least_float(G), rows, factors)

    def _contract_formed(self, name: str, G: Tensor, rows: ChunkRows, factor: Tensor) -> None:
        """Contract per-sample gradients of shape (N, B, *parameter)."""
        layer = self.surface.layer_of(name)
        if layer not in self.weights or name.rpartition(".")[2] != "weight":
            rows.add_trace(name, gradient_trace(G), factor)
            return
        matrix = self.matrices[layer].matrix(self.surface.module(layer), G)
        rows.add(name, layer, [self.weights[layer].contract(matrix, factor)])
