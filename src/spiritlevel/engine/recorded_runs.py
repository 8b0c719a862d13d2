"""Runs of the model in which every use of some parameters is known, with the places of samples.

There sample probes add their noise, and there changes of weights are followed to the outputs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from ..errors import NotApplicable
from ..model import batches as _batches
from ..model.batches import BatchLocation
from ..model.layer_hooks import LayerUse, recording_uses
from ..model.layers import AbstractMatrixRule, Layout
from ..model.layers.broadcast import BroadcastRule
from ..model.layers.embedding import BagRule
from ..model.layers.grouped import GroupedRule
from ..model.layers.patches import ConvTransposeRule
from .routes import Routing, find_routing, hidden_parameters
from .rule_check import check_rules
from .uses import complete_uses
from .weight_space.trusted_derivatives import refuse_hidden_uses
from .workspace import Workspace

Piece = tuple[BatchLocation, tuple[int, ...] | None]  # a chunk, and which of its samples
Places = list[tuple[LayerUse, Layout]]
SAMPLES = 2  # run to see how weights are used


class _Shown(NamedTuple):
    """What a run shows of a use."""

    layer: str
    shape: torch.Size


class SamplePlaces:
    """Finds the places of some parameters' noise, chunk by chunk."""

    def __init__(
        self, workspace: Workspace, names: Collection[str], *, together: bool = False
    ) -> None:
        """`names` are those of the parameters; `together` says that one change has all of them."""
        self.together = together
        self.workspace, self.surface, self.names = workspace, workspace.surface, names
        self._matrices = {matrix.name for matrix in self.surface.matrices.values()}
        # of each chunk, for all kinds: the same weights do the same to the same data again
        self._found: dict[Piece, tuple[list[_Shown], Routing]]
        self._found = workspace.cache.setdefault("routings of sample probes", {})

    def of(
        self, uses: list[LayerUse], outputs: Tensor, batch: Any, key: Piece
    ) -> list[tuple[LayerUse, Layout]]:
        """The uses at which noise is added, and where their samples are.

        Where a parameter is used several times, the input of a later use changes with the noise at
        an earlier one, and with it what the same noise does there: a second-order term ξ ȧ, once as
        it stands and once as its transpose, in the gradient that comes back to the earlier use. So
        these uses keep their inputs with a graph. So do all uses if their parameters change
        together.
        """
        shown = [_Shown(use.layer, use.output.shape) for use in uses]
        before = self._found.get(key)
        if before is None or before[0] != shown:
            self._found[key] = shown, self._routing(uses, outputs)
            hidden = hidden_parameters(uses, self._found[key][1])
            refuse_hidden_uses(self.surface, batch, key[0], outputs, hidden)
        routing = self._found[key][1]
        for name in self.names:
            if routing.routes[name] == "generic":
                raise NotApplicable(f"a use of {name!r} cannot be divided into samples")
        for use in uses:
            if (reason := self.reason_against(use)) is not None:
                raise NotApplicable(reason)
            several = any(routing.routes[name] == "sum" for name in use.names.values())
            if not several:
                if not self.together:
                    use.live_input = None
            elif use.is_operation and isinstance(use.rule, BroadcastRule) and "weight" in use.names:
                raise NotApplicable(f"the gain {use.names['weight']!r} is used several times")
        return [
            (use, layout)
            for use, layout in zip(uses, routing.layouts, strict=True)
            if use.edge is not None and layout is not None
        ]

    def _routing(self, uses: list[LayerUse], outputs: Tensor) -> Routing:
        routing = find_routing(
            self.surface,
            uses,
            outputs,
            expected=self.workspace.plan.layouts,
            trusted=self.workspace.plan.signature,
            seed=len(outputs),
        )
        rules = self.workspace.plan.rules
        later = check_rules(self.surface, uses, routing, outputs, rules.unseen)
        for name in rules.wrong | later.wrong:
            routing.routes[name] = "generic"
        return routing

    def reason_against(self, use: LayerUse) -> str | None:
        """Why a use does not allow for noise of its own for every sample; None if it does."""
        name = use.names.get("weight", "")
        if name not in self.names:
            return None
        if isinstance(use.rule, BroadcastRule) and name in self._matrices:
            return f"the matrix {name!r} is also multiplied entry by entry"
        if isinstance(use.rule, GroupedRule):
            return f"{name!r} is the left factor of a product, or one matrix for each group"
        if isinstance(use.rule, BagRule):
            return f"the rows of {name!r} are added up in bags"
        if isinstance(use.rule, ConvTransposeRule):
            return f"{name!r} is the weight of a transposed convolution"
        operand = use.operands.get("weight")
        if isinstance(use.rule, AbstractMatrixRule) and operand and not operand.is_whole:
            return f"a part of {name!r} is used as a matrix of its own"
        return None


class RecordedRun(NamedTuple):
    """A run of the model on a chunk, with its graph."""

    outputs: Tensor
    targets: Tensor
    places: Places


class RecordedRuns:
    """Runs the model chunk by chunk, and finds the uses of some parameters."""

    def __init__(
        self, workspace: Workspace, names: Collection[str], *, together: bool = False
    ) -> None:
        """`names` are those of the parameters; `together` says that one change has all of them."""
        self.workspace, self.surface, self.names = workspace, workspace.surface, names
        self._places = SamplePlaces(workspace, names, together=together)
        # all layers: the runs of every kind of rows then do the same, and are tested once
        self._modules = {
            layer: self.surface.layers.module(layer) for layer in self.surface.layers.rules
        }

    @contextlib.contextmanager
    def run(
        self, batch: Any, where: BatchLocation, index: Tensor | None = None
    ) -> Iterator[RecordedRun]:
        """A forward; its graph lives as long as the block.

        `index` says which samples of the chunk the batch holds; None: all of them.
        """
        surface = self.surface
        count = _batches.num_samples(batch) if self.workspace.plan.repeats else 1
        recording = recording_uses(self._modules, live=True, num_samples=count)
        with torch.enable_grad(), recording as recorded, surface.numbers.fast():
            outputs, targets = surface.outputs(batch, where=where)
        try:
            with torch.enable_grad():
                complete_uses(surface, recorded, outputs)
            key: Piece = where, None if index is None else tuple(index.tolist())
            yield RecordedRun(outputs, targets, self._places.of(recorded.uses, outputs, batch, key))
        finally:
            recorded.close()


def edges_of(places: Places) -> list[GradientEdge]:
    """The outputs e of these uses, in which derivatives are taken."""
    return [use.edge for use, _ in places if use.edge is not None]


def second_derivatives(
    places: Places, gradients: Sequence[Tensor | None], along: Sequence[Sequence[Tensor]]
) -> Sequence[Tensor | None] | None:
    """(∂²ℓ/∂e²) v at every place, from ∂ℓ/∂e with a graph and the directions v at each place.

    A direction may itself depend on e, at an earlier use of its weight. None if all of it is 0.
    """
    fixed: list[tuple[Tensor, Tensor]] = []  # ∂ℓ/∂e with a graph, and a constant direction
    moving: list[Tensor] = []  # 2⟨∂ℓ/∂e, v⟩ as a function of v alone
    with torch.enable_grad():
        for gradient, directions in zip(gradients, along, strict=True):
            for v in directions if gradient is not None else ():
                assert gradient is not None
                if gradient.requires_grad:
                    fixed.append((gradient, v.detach()))
                if v.requires_grad:
                    moving.append(2 * (gradient.detach() * v).sum())
    if not fixed and not moving:
        return None
    return torch.autograd.grad(
        [*[gradient for gradient, _ in fixed], *moving],
        edges_of(places),
        [*[v for _, v in fixed], *map(torch.ones_like, moving)],
        retain_graph=True,
        allow_unused=True,
    )


def reasons_against(workspace: Workspace, names: Iterable[str]) -> dict[str, str]:
    """By parameter: why its changes cannot be followed to the outputs of layers."""
    surface, routes = workspace.surface, workspace.plan.routes
    reasons = {}
    for name in names:
        if routes[name] == "unused":
            reasons[name] = "the outputs do not depend on it"
        elif routes[name] == "generic":
            reasons[name] = "its uses are not known"
    left = {name: None for name in names if name not in reasons}
    places = SamplePlaces(workspace, left)
    modules = {layer: surface.layers.module(layer) for layer in surface.layers.rules}
    batch = surface.first_samples(SAMPLES)
    with torch.enable_grad(), recording_uses(modules) as recorded:
        outputs, _ = surface.outputs(batch, where=BatchLocation(0))
    try:
        with torch.enable_grad():
            complete_uses(surface, recorded, outputs)
        for use in recorded.uses:
            name = use.names.get("weight", "")
            reason = places.reason_against(use)
            if reason is None and name in left and not isinstance(use.rule, AbstractMatrixRule):
                reason = "it is not used as a matrix"
            if reason is not None:
                reasons.setdefault(name, reason)
    finally:
        recorded.close()
    return reasons
