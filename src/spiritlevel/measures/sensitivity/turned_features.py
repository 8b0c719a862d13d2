"""The loss when the features of a layer are moved at random: E L(W + δρWA) − L(W).

A is orthogonal and uniform, ρ the length of a vector under a kernel (1 unless another is chosen).
A and −A are one draw: what is odd in δ then cancels exactly. W has few rows, so not all of A is
needed: with Wᵀ = QR (R of at most m rows) WA = Rᵀ(QᵀA), QᵀA being the first rows of another uniform
orthogonal matrix.

At a head the second order of each draw is known, ½⟨Δz, ∇²ℓ Δz⟩, and so is its mean over all A: it
is taken out of the draws and its mean put in its place. What is left to chance is of order δ⁴.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor

from ...engine.estimate import Estimate, estimate_of_draws
from ...engine.head.head_layer import Head, head_input
from ...engine.refine import AbstractDraws, missed, refine
from ...engine.weight_space.probes import PILOT, ROUND_OFF, VECTOR_BYTES
from ...engine.workspace import Workspace
from ...ground.errors import SpiritlevelError
from ...math.feature_matrices import Radius, haar_rows, unique_qr
from ...math.positions import OutputCurvature, PositionCurvature, row_curvature
from ...model.arithmetic import full_precision
from ...model.layers.patches import PatchRule
from ...model.losses import MeanSquaredError
from ...records.measurements import Cost


def feature_layer(workspace: Workspace, measure: str) -> str:
    """The layer whose features are turned: the head, or the last measured one that is called."""
    layers = workspace.surface.layers
    rules = layers.matrix_rules
    fitting = [layer for layer, rule in rules.items() if isinstance(rule, PatchRule)]
    if not fitting:
        raise SpiritlevelError(
            f"The measure {measure!r} needs a trainable linear or convolutional layer among the "
            f"chosen layers. Got {', '.join(layers.owned())}. Choose other 'layers'."
        )
    called = [
        layer for layer in workspace.plan.heads if layer in fitting
    ]  # in the order of their use
    heads = [layer for layer in called if workspace.plan.heads[layer].fits]
    return (heads or called or fitting)[-1]


def _rule(workspace: Workspace, layer: str) -> PatchRule:
    return cast(PatchRule, workspace.surface.layers.matrix_rules[layer])


def _matrix(workspace: Workspace, layer: str) -> Tensor:
    """W of shape (groups, rows, columns), float64."""
    module = workspace.surface.layers.module(layer)
    weight = cast(Tensor, module.weight).detach()
    return _rule(workspace, layer).matrix(module, weight.double())


class Robustness(AbstractDraws):
    """Draws of the rise of the loss, until their mean is as precise as asked."""

    pilot = PILOT

    def __init__(self, workspace: Workspace, layer: str) -> None:
        """Draws until the mean is precise enough."""
        self.workspace, self.layer, self.delta = workspace, layer, workspace.options.delta
        self.values: list[float] = []
        W = _matrix(workspace, layer)
        _, self._factor = unique_qr(W.cpu().mT)  # (g, k, out) with k = min(out, m)
        self._size, self._device = W.shape[-1], W.device
        self._radius = Radius(workspace.options.kernel, self._size)
        self._generator = torch.Generator().manual_seed(workspace.seed)
        head = workspace.plan.heads.get(layer)
        self._head = head if head is not None and head.fits and not head.shared else None
        self._second_order_known = False
        before = workspace.surface.cost
        refine(self, workspace.precision)
        self.cost: Cost = workspace.surface.processes.total_cost(workspace.surface.cost - before)

    @property
    def count(self) -> int:
        """Draws so far, each with its mirror image."""
        return len(self.values)

    def estimate(self) -> Estimate:
        """Their mean; known but for rounding where the second order is all there is."""
        estimate = estimate_of_draws(self.values)
        if estimate.stderr <= ROUND_OFF * abs(estimate.value):
            return dataclasses.replace(estimate, variance=0.0, drawn=not self._is_quadratic)
        return estimate

    @property
    def _is_quadratic(self) -> bool:
        """Whether the second order is all there is, so that nothing is left to chance."""
        quadratic = isinstance(self.workspace.surface.loss, MeanSquaredError)
        return quadratic and self._second_order_known

    def draw(self, count: int) -> None:
        """Draw `count` more, as many together as fit in memory."""
        room = self.workspace.vector_memory.room(VECTOR_BYTES)
        most = max(1, room // (32 * self._factor.shape[-1] * self._size))
        while count > 0:
            part = min(count, most)
            lengths = self.delta * self._radius.draw(part, self._generator)
            steps = [
                float(r) * turned for r, turned in zip(lengths, self._turned(part), strict=True)
            ]
            self.values += (
                self._by_weights(steps) if self._head is None else self._at_head(self._head, steps)
            )
            count -= part

    def _turned(self, count: int) -> Iterator[Tensor]:
        """WA of some draws, each of shape (g, rows, columns); every group has its own A."""
        for _ in range(count):
            groups = [haar_rows(R.shape[0], self._size, self._generator) for R in self._factor]
            yield (self._factor.mT @ torch.stack(groups)).to(self._device)

    def _at_head(self, head: Head, steps: list[Tensor]) -> list[float]:
        """The outputs are linear in the head: no pass but one for all draws, and in float64."""
        surface, plan = self.workspace.surface, self.workspace.plan
        sums = torch.zeros(len(steps) + 1, dtype=torch.float64, device=surface.device)
        W = head.weight().double()
        size = plan.footprint.saved // 2 + 64 * plan.num_outputs
        chunk = max(1, min(self.workspace.memory // (size + 1), plan.footprint.fitting))
        with torch.no_grad(), full_precision(), surface.processes.together():
            for where, batch in surface.chunks(chunk):
                outputs, targets = surface.outputs(batch, where=where, watch=head.module)
                a = head_input(head, surface.watched, outputs, str(where))
                features, z = head.features(a.double()), outputs.double()
                here = surface.loss.values(z, targets)
                curvature = surface.loss.curvature(z, targets)
                second_order = self._second_order(head, curvature, outputs, features, W)
                for i, step in enumerate(steps):
                    move = features @ step[0].mT
                    if head.by_position:
                        move = head.positions(outputs).flat(move)
                    move = move.reshape(z.shape)
                    ahead = surface.loss.values(z + move, targets) - here
                    behind = surface.loss.values(z - move, targets) - here
                    sums[i] += (ahead + behind).sum() / 2
                    if second_order is not None:
                        self._second_order_known = True
                        second = (move.flatten(1) * curvature.apply(move.flatten(1))).sum() / 2
                        sums[i] += second_order - second
                sums[-1] += surface.loss.weights(outputs, targets).double().sum()
        surface.processes.sum_(sums)
        return (sums[:-1] / sums[-1]).tolist()

    def _second_order(
        self,
        head: Head,
        curvature: OutputCurvature,
        outputs: Tensor,
        features: Tensor,
        W: Tensor,
    ) -> Tensor | None:
        """Mean second order, Σ over rows of δ² E[ρ²]/(2m) ‖φ‖² Tr(Wᵀ ∇²ℓ W); None if not known."""
        rows: OutputCurvature | None = curvature
        if head.by_position:
            rows = row_curvature(curvature, head.positions(outputs))
        if rows is None or isinstance(rows, PositionCurvature):
            return None
        squares = features.square().sum(dim=1)
        factor = second_order_factor(self.delta, self._radius)
        return factor * (squares * rows.quadratic(W)).sum()

    def _by_weights(self, steps: list[Tensor]) -> list[float]:
        surface, rule = self.workspace.surface, _rule(self.workspace, self.layer)
        module = surface.layers.module(self.layer)
        weight = cast(Tensor, module.weight)
        name = next(name for name, p in surface.parameters.items() if p is weight)
        here = weight.detach()
        points = []
        for step in steps:
            move = rule.from_matrix(module, step[None])[0]
            points += [{name: (here + sign * move).to(here.dtype)} for sign in (1.0, -1.0)]
        base, *moved = self.workspace.perturbed.losses([{}, *points])
        pairs = zip(moved[::2], moved[1::2], strict=True)
        return [(ahead - base + behind - base) / 2 for ahead, behind in pairs]

    def text(self) -> str:
        """The layer and the number of draws, for the result."""
        note = ", the second order exactly" if self._second_order_known else ""
        return f"layer {self.layer!r}; {len(self.values)} draws of ±A{note}"

    def missed(self) -> str:
        """What was reached, and what would have sufficed."""
        return f"{self.text()}; {missed(self, self.workspace.precision, self.estimate())}"


def second_order_factor(delta: float, radius: Radius) -> float:
    """δ² E[ρ²]/(2m), the mean square of an entry of δρA, halved."""
    return delta**2 * radius.mean_square / (2 * radius.dimension)


def prediction_factor(workspace: Workspace, layer: str) -> float:
    """What κ of a layer is multiplied by to predict the rise of the loss."""
    radius = Radius(workspace.options.kernel, int(_matrix(workspace, layer).shape[-1]))
    return second_order_factor(workspace.options.delta, radius)


def robustness(workspace: Workspace, measure: str) -> Robustness:
    """The draws, once for all measures."""
    layer = feature_layer(workspace, measure)
    return workspace.once(("robustness", layer), lambda: Robustness(workspace, layer))
