"""Listeners at layers: they contract the gradients of a sweep as they arrive."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from ...math.contractions import gradient_trace
from ...model.layer_hooks import LayerUse
from ...model.layers import (
    AbstractLayerGradients,
    AbstractMatrixGradients,
    Contracted,
    LayerMatrix,
    PatchGradients,
    over_columns,
)
from ..routes import Route
from .sums import ChunkValues, SweepSums


class ChunkRows:
    """Values of one chunk by parameter or layer; summed in float64 after the last column."""

    def __init__(self, sums: SweepSums, num_samples: int) -> None:
        """Start without values, for a chunk of `num_samples` samples."""
        self.sums = sums
        self.num_samples = num_samples
        self.factor = torch.empty(0)  # the weight of the current column, shape: (N,)
        self.pending: dict[str, Tensor] = {}
        self.values: dict[tuple[str, str], list[tuple[Tensor, Tensor]]] = {}

    def add_trace(self, name: str, values: Tensor, factor: Tensor) -> None:
        """Add terms of the trace; `values` and `factor` have shape (N, B)."""
        self.values.setdefault(("trace", name), []).append((values, factor))

    def add_gradient(self, name: str, G: Tensor, factor: Tensor) -> None:
        """Small per-sample gradients of shape (N, B, *parameter), for their squared norms."""
        self.values.setdefault(("gradient", name), []).append((G, factor))

    def add(self, name: str, layer: str, parts: list[Contracted]) -> None:
        """Contractions of a layer, in pieces that each cover the next samples."""
        factor = _joined([part.factor for part in parts])
        self.add_trace(name, _joined([part.trace for part in parts]), factor)
        for kind in parts[0].kappas:
            kappa = _joined([part.kappas[kind] for part in parts])
            self.values.setdefault((kind, layer), []).append((kappa, factor))
        if parts[0].neurons is not None:
            terms = [part.neurons for part in parts if part.neurons is not None]
            self.add_neurons(layer, _joined(terms), factor)

    def add_neurons(self, layer: str, terms: Tensor, factor: Tensor) -> None:
        """Add terms of ρ; `terms` has shape (N, B, neurons)."""
        self.values.setdefault(("neurons", layer), []).append((terms, factor))

    def collect(self, device: torch.device) -> ChunkValues:
        """The values of the columns so far, and start again for the next ones."""
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
class AbstractListener(abc.ABC):
    """Collects the gradients that arrive at a layer and contracts a few columns at a time."""

    rows: ChunkRows
    use: LayerUse
    hold: int  # how many columns to collect
    collected: list[Tensor] = dataclasses.field(default_factory=list, init=False)
    factors: list[Tensor] = dataclasses.field(default_factory=list, init=False)

    def __call__(self, gradient: Tensor) -> None:
        """Collect a gradient, and contract once there are `hold` of them."""
        self.collected.append(at_least_float(gradient.detach()))
        self.factors.append(self.rows.factor)
        if len(self.collected) == self.hold:
            self.flush()

    def flush(self) -> None:
        """Contract the columns that were collected."""
        if self.collected:
            self.contract(_columns(self.factors))
            self.collected.clear()
            self.factors.clear()

    @abc.abstractmethod
    def contract(self, factors: Tensor) -> None:
        """Add the collected columns to the rows; `factors` has shape (N, B)."""


@dataclasses.dataclass
class OutputListener(AbstractListener):
    """At a layer's output: computes trace, κ, and, where G is formed, ρ."""

    routes: Mapping[str, Route]
    layer_gradients: AbstractLayerGradients
    named: dict[str, str]
    weight: LayerMatrix | None  # the layer's matrix, if it is contracted use by use

    def contract(self, factors: Tensor) -> None:
        """Contract the weight in its cheapest form, all else from per-sample gradients."""
        rest, rows = dict(self.named), self.rows
        if self.weight is not None:
            assert isinstance(self.layer_gradients, AbstractMatrixGradients)
            parts = self.layer_gradients.contract(self.collected, factors, self.weight)
            rows.add(rest.pop("weight"), self.use.layer, parts)
        for (key, name), G in zip(rest.items(), self._gradients(list(rest)), strict=True):
            G = self.use.placed(key, G)
            if self.routes[name] == "sum":
                before = rows.pending.get(name)
                rows.pending[name] = G if before is None else before + G
            else:
                rows.add_gradient(name, G, factors)

    def _gradients(self, keys: list[str]) -> tuple[Tensor, ...]:
        """Per-sample gradients by short name, each of shape (N, B, *parameter)."""
        if not keys:
            return ()
        layer_gradients = self.layer_gradients
        if keys == ["bias"] and isinstance(layer_gradients, PatchGradients):
            return over_columns(
                lambda delta: (layer_gradients.bias_gradient(delta),), self.collected
            )

        def column(delta: Tensor) -> tuple[Tensor, ...]:
            gradients = layer_gradients.gradients(delta)
            return tuple(gradients[key] for key in keys)

        return over_columns(column, self.collected)


@dataclasses.dataclass
class InputListener(AbstractListener):
    """Listens at a layer's input: computes ρ where G is not formed."""

    layer_gradients: PatchGradients

    def contract(self, factors: Tensor) -> None:
        """Add the terms of ρ, which are sums of input times gradient."""
        (terms,) = over_columns(lambda g: (self.layer_gradients.contract_input(g),), self.collected)
        self.rows.add_neurons(self.use.layer, terms, factors)


def at_least_float(x: Tensor) -> Tensor:
    """The tensor in at least float32: half precision is too coarse for sums."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
