"""The backward part of a pass: every layer contracts its per-sample gradient as the signal arrives.

For each factor column s_k of the output Hessian one backward pass of ⟨s_k, z⟩ reaches every layer.
With many outputs a few probes Σ_k ±s_k, with random signs of their own for every sample, stand for
all columns: their error falls with the number of samples.
Columns are scaled to size 1 a sample before the backward and the result is scaled back in float64,
so that a confident network, whose columns are 1e-13 and less, loses no digits on the way.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from ...math import contractions
from ...math.contractions import gradient_trace
from ...math.curvature import Signed
from ...math.positions import OutputCurvature
from ...math.signs import random_signs
from ...model.batches import BatchLocation
from ...model.layer_hooks import LayerUse, deepest, recording_uses
from ...model.layers import (
    AbstractCall,
    AbstractMatrixCall,
    Contracted,
    ContractionRequest,
    KappaWeight,
    PatchCall,
    WeightMatrix,
    over_columns,
)
from ...model.surface import Surface
from ..plan import Plan, Route, matrix_layers, rules_of
from .feature_scales import Scales, by_column
from .footprint import held_columns
from .per_sample import per_sample_gradients
from .sums import ChunkValues, SweepSums


@dataclasses.dataclass(frozen=True)
class Probes:
    """Random signs in place of factor columns: which streams of them, and for which samples."""

    seed: int
    streams: range
    offset: int  # how many samples other processes have before the first of these


class Sweep:
    """One forward and all factor columns of a chunk, added to `sums`."""

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
        """`kappa` and `rho` say what to contract beside the trace; `probes` replace the columns.

        With `scales` κ is also taken with features divided by these.
        """
        scales = scales or {}
        self.surface, self.plan, self.rho, self.probes = surface, plan, rho, probes
        self.sums = SweepSums(surface, None if probes is None else len(probes.streams), scales)
        self.num_columns = plan.num_columns if probes is None else 1
        self.rules = {
            layer: rule for layer, rule in rules_of(surface).items() if layer in plan.layouts
        }
        self.names = {id(p): name for name, p in surface.parameters.items()}
        self.wants = ContractionRequest(kappa=kappa, num_columns=self.num_columns)
        self.weights: dict[str, WeightMatrix] = {}
        self.matrices = matrix_layers(surface)
        for layer, rule in self.matrices.items():
            module = surface.module(layer)
            matrix = rule.matrix(module, cast(Tensor, module.weight).detach())
            matrix = _at_least_float(matrix)
            kappas = {"kappa": KappaWeight.of(matrix)} if kappa else {}
            for kind, of_layers in scales.items():
                if layer in of_layers:  # one that is never called has no features
                    kappas[kind] = KappaWeight.of(matrix, by_column(of_layers[layer], matrix))
            self.weights[layer] = WeightMatrix(matrix, kappas, rule.neurons(module), rho)
            count = matrix.shape[0] * rule.neurons(module)
            self.sums.neurons[layer] = torch.zeros(
                self.sums.num_probes or 1, count, dtype=torch.float64, device=matrix.device
            )
        self.modules = {
            layer: surface.module(layer) for layer in self.rules if self._ruled_names(layer)
        }

    def _ruled_names(self, layer: str) -> dict[str, str]:
        """Short to full name of the parameters of a layer that its rule handles."""
        own = self.surface.module(layer).named_parameters(recurse=False)
        named = {key: self.names[id(p)] for key, p in own if id(p) in self.names}
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
                rows = _Rows(self.sums, len(outputs))
                edges = self._listen(recorded.uses, rows)
                deep = deepest(outputs, edges) if edges else []
                draws = []
                for columns in self._draws(curvature, where, len(outputs)):
                    self._columns(outputs, columns, deep, rows, batch)
                    for use in recorded.uses:
                        for listener in (use.on_output, use.on_input):
                            if isinstance(listener, _AbstractListener):
                                listener.flush()
                    draws.append(rows.collect(outputs.device))
                weights = surface.loss.weights(outputs.detach(), targets).double()
                self.sums.add(draws, weights)
        finally:
            recorded.close()
        return outputs.detach(), targets, curvature

    def _draws(
        self, curvature: OutputCurvature, where: BatchLocation, num_samples: int
    ) -> Iterator[Iterable[Signed]]:
        """All factor columns at once, or what each probe puts in their place."""
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
        columns: Iterable[Signed],
        deep: list[Any],
        rows: _Rows,
        batch: Any,
    ) -> None:
        generic = [name for name, route in self.plan.routes.items() if route == "generic"]
        kept: list[tuple[Tensor, Tensor]] = []
        for column, sign in columns:
            size = column.abs().amax(dim=1, keepdim=True)
            unit = (column / torch.where(size > 0, size, torch.ones_like(size))).to(outputs.dtype)
            unit = unit.reshape(outputs.shape)
            rows.factor = sign * size.squeeze(1).square()
            if deep:
                self.surface.pull(outputs, unit, deep)
                self._contract_sums(rows)
            if generic:
                kept.append((unit, rows.factor))
        if generic:
            self._contract_generic(generic, batch, kept, rows)

    def _listen(self, uses: list[LayerUse], rows: _Rows) -> list[Any]:
        """Attach each use's contraction to the gradients it will receive."""
        edges = []
        for use in uses:
            named = self._ruled_names(use.layer)
            if use.edge is None:
                continue
            a = _at_least_float(use.input)
            layout = dataclasses.replace(self.plan.layouts[use.layer], num_samples=rows.num_samples)
            wants = self.wants_of(named, use.layer)
            call = self.rules[use.layer].begin(use.module, a, use.output.shape, layout, wants)
            hold = self._hold(call, use.output, named)
            weight = self.weights.get(use.layer) if wants.contract else None
            use.on_output = _OutputListener(
                rows, use.layer, hold, self.plan.routes, call, named, weight
            )
            edges.append(use.edge)
            if self._rho_from_input(call, named, use.layer):
                use.on_input = _InputListener(rows, use.layer, hold, call)
                assert use.input_edge is not None
                edges.append(use.input_edge)
        return edges

    def _hold(self, call: AbstractCall, output: Tensor, named: dict[str, str]) -> int:
        """How many columns to hold back before contracting them together."""
        if any(self.plan.routes[name] == "sum" for name in named.values()):
            return 1  # several uses are added up column by column
        if isinstance(call, PatchCall) and call.form == "direct":
            return contractions.held_columns(call.shape, self.num_columns)
        on_cpu = self.surface.device.type == "cpu"
        if on_cpu and not isinstance(call, PatchCall):
            return 1
        return held_columns(output.nbytes, self.num_columns, on_cpu=on_cpu)

    def wants_of(self, named: dict[str, str], layer: str) -> ContractionRequest:
        """Contractions only for a weight that is used once."""
        weight = named.get("weight")
        single = weight is not None and self.plan.routes[weight] == "single"
        inverses = self._inverses(layer) if single else {}
        return dataclasses.replace(self.wants, contract=single, inverses=inverses)

    def _inverses(self, layer: str) -> Mapping[str, Tensor]:
        kappas = self.weights[layer].kappas if layer in self.weights else {}
        return {kind: r.inverse for kind, r in kappas.items() if r.inverse is not None}

    def _rho_from_input(self, call: AbstractCall, named: dict[str, str], layer: str) -> bool:
        return (
            self.rho
            and isinstance(call, AbstractMatrixCall)
            and call.needs_input_gradient
            and self.wants_of(named, layer).contract
            and layer in self.weights
        )

    def _contract_sums(self, rows: _Rows) -> None:
        """Weights used several times: G was added up over the uses of this column."""
        for name, G in rows.pending.items():
            self._contract_formed(name, G, rows, rows.factor[:, None])
        rows.pending.clear()

    def _contract_generic(
        self, names: list[str], batch: Any, kept: list[tuple[Tensor, Tensor]], rows: _Rows
    ) -> None:
        columns = torch.stack([unit for unit, _ in kept], dim=1)
        factors = torch.stack([factor for _, factor in kept], dim=1)
        gradients = per_sample_gradients(
            self.surface, names, batch, columns, vectorize=self.plan.vectorize
        )
        for name, G in gradients.items():
            self._contract_formed(name, _at_least_float(G), rows, factors)

    def _contract_formed(self, name: str, G: Tensor, rows: _Rows, factor: Tensor) -> None:
        """Contract per-sample gradients of shape (N, B, *parameter)."""
        layer = self.surface.layer_of(name)
        if layer not in self.weights or name.rpartition(".")[2] != "weight":
            rows.add_trace(name, gradient_trace(G), factor)
            return
        matrix = self.matrices[layer].matrix(self.surface.module(layer), G)
        rows.add(name, layer, [self.weights[layer].contract(matrix, factor)])


class _Rows:
    """Values of one chunk by parameter or layer; added up in float64 once all columns are there."""

    def __init__(self, sums: SweepSums, num_samples: int) -> None:
        self.sums = sums
        self.num_samples = num_samples
        self.factor = torch.empty(0)  # what the current column counts, shape: (N,)
        self.pending: dict[str, Tensor] = {}
        self.values: dict[tuple[str, str], list[tuple[Tensor, Tensor]]] = {}

    def add_trace(self, name: str, values: Tensor, factor: Tensor) -> None:
        """`values` and `factor` of shape (N, B)."""
        self.values.setdefault(("trace", name), []).append((values, factor))

    def add_gradient(self, name: str, G: Tensor, factor: Tensor) -> None:
        """Small per-sample gradients of shape (N, B, *parameter), for their squared norms."""
        self.values.setdefault(("gradient", name), []).append((G, factor))

    def add(self, name: str, layer: str, parts: list[Contracted]) -> None:
        """Contractions of a layer, in pieces that follow each other over the samples."""
        factor = _joined([part.factor for part in parts])
        self.add_trace(name, _joined([part.trace for part in parts]), factor)
        for kind in parts[0].kappas:
            kappa = _joined([part.kappas[kind] for part in parts])
            self.values.setdefault((kind, layer), []).append((kappa, factor))
        if parts[0].neurons is not None:
            terms = [part.neurons for part in parts if part.neurons is not None]
            self.add_neurons(layer, _joined(terms), factor)

    def add_neurons(self, layer: str, terms: Tensor, factor: Tensor) -> None:
        """`terms` of shape (N, B, neurons)."""
        self.values.setdefault(("neurons", layer), []).append((terms, factor))

    def collect(self, device: torch.device) -> ChunkValues:
        """The values of the columns so far; the next ones start anew."""
        rows = {
            kind: torch.zeros(len(index), self.num_samples, dtype=torch.float64, device=device)
            for kind, index in self.sums.index.items()
        }
        neurons = {}
        for (kind, name), columns in self.values.items():
            factor = torch.cat([factor for _, factor in columns], dim=1)
            values = torch.cat([values for values, _ in columns], dim=1)
            if kind == "gradient":
                kind, values = "trace", gradient_trace(values)
            if kind == "neurons":
                weighted = factor[:, :, None] * values.double().square()
                neurons[name] = weighted.sum(dim=(0, 1))
                kind, row = "rho", weighted.sum(dim=(1, 2))
            else:
                row = (factor * values).sum(dim=1)
            rows[kind][self.sums.index[kind][name]] = row
        self.values.clear()
        return ChunkValues(rows, neurons)


def _columns(factors: list[Tensor]) -> Tensor:
    """Shape (N, B); a single column, the common case on a CPU, needs no copy."""
    return factors[0][:, None] if len(factors) == 1 else torch.stack(factors, dim=1)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


@dataclasses.dataclass
class _AbstractListener(abc.ABC):
    """Collects the gradients that arrive at one place and contracts a few columns at a time."""

    rows: _Rows
    layer: str
    hold: int
    held: list[Tensor] = dataclasses.field(default_factory=list, init=False)
    factors: list[Tensor] = dataclasses.field(default_factory=list, init=False)

    def __call__(self, gradient: Tensor) -> None:
        self.held.append(_at_least_float(gradient.detach()))
        self.factors.append(self.rows.factor)
        if len(self.held) == self.hold:
            self.flush()

    def flush(self) -> None:
        """Contract what was held back."""
        if self.held:
            self.contract(_columns(self.factors))
            self.held.clear()
            self.factors.clear()

    @abc.abstractmethod
    def contract(self, factors: Tensor) -> None:
        """Add the held columns to the rows; `factors` has shape (N, B)."""


@dataclasses.dataclass
class _OutputListener(_AbstractListener):
    """At a layer's output: trace, κ, and ρ where G is formed."""

    routes: dict[str, Route]
    call: AbstractCall
    named: dict[str, str]
    weight: WeightMatrix | None  # the layer's matrix, where it is contracted use by use

    def contract(self, factors: Tensor) -> None:
        """The weight by its own form, everything else by its per-sample gradients."""
        rest, rows = dict(self.named), self.rows
        if self.weight is not None:
            assert isinstance(self.call, AbstractMatrixCall)
            parts = self.call.contract(self.held, factors, self.weight)
            rows.add(rest.pop("weight"), self.layer, parts)
        for name, G in zip(rest.values(), self._gradients(list(rest)), strict=True):
            if self.routes[name] == "sum":
                before = rows.pending.get(name)
                rows.pending[name] = G if before is None else before + G
            else:
                rows.add_gradient(name, G, factors)

    def _gradients(self, keys: list[str]) -> tuple[Tensor, ...]:
        """Per-sample gradients of the rest, each of shape (N, B, *parameter)."""
        if not keys:
            return ()
        call = self.call
        if keys == ["bias"] and isinstance(call, PatchCall):
            return over_columns(lambda delta: (call.bias_gradient(delta),), self.held)

        def column(delta: Tensor) -> tuple[Tensor, ...]:
            gradients = call.gradients(delta)
            return tuple(gradients[key] for key in keys)

        return over_columns(column, self.held)


@dataclasses.dataclass
class _InputListener(_AbstractListener):
    """At a layer's input: ρ where G is not formed."""

    call: PatchCall

    def contract(self, factors: Tensor) -> None:
        """The terms of ρ are sums of input times gradient."""
        (terms,) = over_columns(lambda g: (self.call.contract_input(g),), self.held)
        self.rows.add_neurons(self.layer, terms, factors)


def _at_least_float(x: Tensor) -> Tensor:
    """Half precision is only good enough to travel through the network."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
