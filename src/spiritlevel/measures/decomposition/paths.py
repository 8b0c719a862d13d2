"""Paths from a layer to the outputs: J = ∂outputs/∂pre-activations of a sample, and M = J Jᵀ.

A weight with several positions or uses has all their pre-activations in J, and s, the squared norm
of its input, is summed over all its patches. Then s Tr(A M), with A the curvature of the loss in
the outputs, is the trace of the layer's GGN where the weight is used once per sample, and an upper
bound of it where it is shared (Cauchy and Schwarz).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from ...engine.plan import MeasuringPlan, make_plan
from ...engine.routes import find_routing
from ...engine.sweep.probed_rows import ProbedRows, SampleNumbers
from ...engine.sweep.sums import RowSums
from ...engine.uses import name_uses
from ...engine.workspace import Workspace
from ...ground.errors import SpiritlevelError
from ...math.curvature import SoftmaxCurvature, scaled_to_one
from ...math.positions import OutputCurvature, PositionCurvature, Positions
from ...math.signs import random_signs
from ...model.arithmetic import full_precision
from ...model.autograd_graph import deepest
from ...model.batches import BatchLocation
from ...model.layer_hooks import LayerUse, LayerUses, recording_uses
from ...model.layers import AbstractMatrixRule, Layout
from ...model.losses import CrossEntropy
from ..registry import once

_STREAM = 3000  # of random signs: apart from those of the sweep


def path_plan(workspace: Workspace) -> MeasuringPlan:
    """Where each layer has its samples: as the sweep finds it, without a sweep."""
    if workspace.plan.sweep:
        return workspace.plan
    with full_precision():
        return workspace.once("path plan", lambda: make_plan(workspace.surface))


def check_paths(workspace: Workspace, measure: str) -> None:
    """Raise where a weight is not used by its own layer, which leaves no pre-activation to see."""
    plan, surface = path_plan(workspace), workspace.surface
    for layer in surface.layers.matrix_rules:
        name = next(n for n in surface.layers.owned()[layer] if n.endswith("weight"))
        if plan.routes[name] == "generic" or name in plan.operations:
            raise SpiritlevelError(
                f"The measure {measure!r} needs the output of every measured layer. The weight "
                f"{name!r} is used outside the forward of its own module {layer!r} (or its samples "
                "cannot be distinguished there). Choose other 'layers', or measure "
                "curvature.ggn_trace, which holds for any parameter."
            )


class Paths:
    """The measured layers of a network, watched while batches go through."""

    def __init__(self, workspace: Workspace) -> None:
        """Modules that share a measured weight count as further uses of its layer."""
        self.workspace, self.surface, self.plan = workspace, workspace.surface, path_plan(workspace)
        self.numbers = SampleNumbers(workspace)
        self.layers = list(self.surface.layers.matrix_rules)
        owners = {id(self.surface.layers.module(layer).weight): layer for layer in self.layers}
        self.rules: dict[str, AbstractMatrixRule] = {}
        self.owner: dict[str, str] = {}  # by path of the module that uses the weight
        for path, rule in self.surface.layers.rules.items():
            weight = getattr(self.surface.layers.module(path), "weight", None)
            if isinstance(rule, AbstractMatrixRule) and id(weight) in owners:
                self.rules[path], self.owner[path] = rule, owners[id(weight)]

    @contextlib.contextmanager
    def opened(self, batch: Any, where: BatchLocation) -> Iterator[Seen]:
        """Run one batch and record its uses of the layers, with the graph for derivatives."""
        modules: dict[str, nn.Module] = {
            path: self.surface.layers.module(path) for path in self.rules
        }
        with torch.enable_grad(), recording_uses(modules) as recorded:
            outputs, targets = self.surface.outputs(batch, where=where)
        try:
            with torch.no_grad():
                yield Seen(self, outputs, targets, recorded.uses, self._layouts(recorded, outputs))
        finally:
            recorded.close()

    def _layouts(self, recorded: LayerUses, outputs: Tensor) -> list[Layout]:
        """Where the samples are at each use in this batch; others may do other things."""
        name_uses(self.surface, recorded.uses)
        routing = find_routing(
            self.surface,
            recorded.uses,
            outputs,
            expected=self.plan.layouts,
            trusted=self.plan.signature,
        )
        lost = [
            use.layer
            for use, layout in zip(recorded.uses, routing.layouts, strict=True)
            if layout is None
        ]
        for layer in self.layers:
            if routing.routes[self.surface.layers.weight_of(layer)] == "generic":
                lost.append(layer)
        if lost:
            raise SpiritlevelError(
                "The measures of the family 'decomposition' need the output of every measured "
                f"layer. In one of the batches the samples cannot be told apart at {lost[0]!r}, or "
                "its weight is used elsewhere. Choose other 'layers', or measure "
                "curvature.ggn_trace, which holds for any parameter."
            )
        return [layout for layout in routing.layouts if layout is not None]


class Seen:
    """Outputs of a batch and the places in its graph where layers gave theirs."""

    def __init__(
        self,
        paths: Paths,
        outputs: Tensor,
        targets: Tensor,
        uses: list[LayerUse],
        layouts: list[Layout],
    ) -> None:
        """Work out the sums of squared inputs, once for all columns."""
        self.paths, self.outputs = paths, outputs
        loss = paths.surface.loss
        assert isinstance(loss, CrossEntropy)
        self.num_samples = len(outputs)
        self.layouts = {id(use): layout for use, layout in zip(uses, layouts, strict=True)}
        self.positions: Positions = loss.positions(outputs, targets)
        self.curvature: OutputCurvature = loss.curvature(outputs.detach().double(), targets)
        self.weights = loss.weights(outputs.detach(), targets).double()
        seen = [use for use in uses if use.edge is not None]
        self.live = {
            layer: [use for use in seen if paths.owner[use.layer] == layer]
            for layer in paths.layers
        }

    @property
    def used(self) -> list[LayerUse]:
        """The uses of all layers in this batch."""
        return [use for uses in self.live.values() for use in uses]

    @property
    def edges(self) -> list[Any]:
        """The edges of the graph at which the gradients of these uses arrive."""
        return [use.edge for use in self.used]

    @property
    def mass(self) -> Tensor:
        """Σ over the positions of what the softmax Hessian is multiplied by, shape (N,)."""
        if isinstance(self.curvature, PositionCurvature):
            rows = cast(SoftmaxCurvature, self.curvature.rows)
            return self.positions.by_sample(rows.mass).sum(dim=1)
        return cast(SoftmaxCurvature, self.curvature).mass

    def squared_inputs(self, layer: str) -> Tensor:
        """Of a layer, the s above: over all patches of all uses, shape (N,)."""
        total = torch.zeros_like(self.weights)
        for use in self.live[layer]:
            rule, layout = self.paths.rules[use.layer], self._layout(use)
            total += rule.squared_inputs(use.module, use.input, use.output.shape, layout)
        return total

    def flat(self, use: LayerUse, delta: Tensor) -> Tensor:
        """The gradient at a use, one row per sample, float64."""
        return self._layout(use).split(delta).reshape(self.num_samples, -1).double()

    def _layout(self, use: LayerUse) -> Layout:
        return self.layouts[id(use)]


@once
def centered_by_probes(workspace: Workspace) -> ProbedRows:
    """Of each layer s Σ_k ‖δ_k‖², over the factor columns or over probes; worked out once."""
    paths = Paths(workspace)
    columns = paths.plan.num_columns
    return ProbedRows(
        workspace, lambda streams: _centered_pass(paths, streams), num_columns=columns
    )


def _centered_pass(paths: Paths, streams: range | None) -> RowSums:
    surface = paths.surface
    sums = RowSums(paths.layers, surface.device)
    chunk = paths.plan.probe_footprint.chunk(paths.workspace.memory, sweep=True)
    with surface.processes.together():
        for where, batch in surface.chunks(chunk):
            with paths.opened(batch, where) as seen:
                draws = []
                squares = torch.stack([seen.squared_inputs(layer) for layer in paths.layers])
                if streams is None:
                    draws.append(squares * _signal(seen, seen.curvature.columns()))
                for stream in streams or ():
                    numbers = paths.numbers.of(where, seen.num_samples)
                    count = seen.curvature.num_signs
                    seed = paths.workspace.seed
                    signs = random_signs(seed, _STREAM + stream, numbers, count, torch.float64)
                    draws.append(squares * _signal(seen, seen.curvature.probe(signs)))
                sums.add(draws, seen.weights)
    sums.reduce(surface.processes)
    return sums


def _signal(seen: Seen, columns: Any) -> Tensor:
    """Σ over some columns of ‖δ‖², shape (layers, N)."""
    layers = seen.paths.layers
    total = torch.zeros(len(layers), seen.num_samples, dtype=torch.float64)
    total = total.to(seen.outputs.device)
    deep = deepest(seen.outputs, seen.edges) if seen.edges else []
    factor = torch.zeros_like(seen.weights)

    def listen(row: int, use: LayerUse) -> Any:
        def add(delta: Tensor) -> None:
            total[row] += factor * seen.flat(use, delta).square().sum(dim=1)

        return add

    for row, layer in enumerate(layers):
        for use in seen.live[layer]:
            use.on_output = listen(row, use)
    for column, sign in columns:
        unit, size = scaled_to_one(column)
        factor = sign * size.squeeze(1).square()
        if deep:
            unit = unit.to(seen.outputs.dtype).reshape(seen.outputs.shape)
            seen.paths.surface.pull(seen.outputs, unit, deep)
    return total
