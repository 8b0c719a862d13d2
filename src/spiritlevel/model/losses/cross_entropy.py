"""Softmax cross-entropy for samples, tokens or pixels."""

from __future__ import annotations

import torch
from torch import Tensor

from ...math.curvature import SoftmaxCurvature
from ...math.log_loss import minus_log_largest
from ...math.positions import OutputCurvature, PositionCurvature
from .class_targets import AbstractClassLoss


class CrossEntropy(AbstractClassLoss):
    """Softmax cross-entropy with class indices or class probabilities as targets."""

    kind = "cross_entropy"
    takes_probabilities = True

    def __init__(
        self,
        *,
        label_smoothing: float = 0.0,
        class_weights: Tensor | None = None,
        ignore_index: int = -100,
        class_dim: int | None = None,
    ) -> None:
        """The arguments of `torch.nn.CrossEntropyLoss`, with the same meaning, and `class_dim`."""
        super().__init__(
            class_weights=class_weights, ignore_index=ignore_index, class_dim=class_dim
        )
        self.label_smoothing = label_smoothing

    @property
    def name(self) -> str:
        """The name that settings and messages show."""
        details = []
        if self.label_smoothing:
            details.append(f"label_smoothing={self.label_smoothing}")
        if self.class_weights is not None:
            details.append("class weights")
        return self.kind + (f" ({', '.join(details)})" if details else "")

    def num_columns(self, outputs: Tensor, targets: Tensor) -> int:
        """C − 1 per position."""
        positions = self.positions(outputs, targets)
        return positions.count * (positions.num_classes - 1)

    def row_values(self, rows: Tensor, row_targets: Tensor) -> Tensor:
        """The loss of each position times the weight of its target.

        With the largest class m it is mass · (−log p_m) + Σ_c target_c (z_m − z_c): no digits
        cancel where the network is confident and right, in no derivative either.
        """
        above, top = minus_log_largest(rows)
        if row_targets.is_floating_point():
            behind = self._shares_behind(rows, row_targets.to(rows.dtype), top)
            return self.row_masses(rows, row_targets) * above + behind
        # out-of-range labels are refused later. One gather, so that its gradient is 0 where y is m
        label = row_targets.clamp(0, rows.shape[1] - 1)[:, None]
        largest, labeled = rows.gather(1, torch.cat([top, label], dim=1)).unbind(dim=1)
        values = self.row_weights(rows, row_targets) * (above + (largest - labeled))
        if not self.label_smoothing:
            return values
        keep = self._weight_of(row_targets, rows.new_ones(len(rows)), None)
        class_weights = self._class_weights(rows)
        class_weights = rows.new_ones(rows.shape[1]) if class_weights is None else class_weights
        everywhere = class_weights.sum() * above + (rows.gather(1, top) - rows) @ class_weights
        smooth = self.label_smoothing
        return (1 - smooth) * values + smooth / rows.shape[1] * keep * everywhere

    def _shares_behind(self, rows: Tensor, row_targets: Tensor, top: Tensor) -> Tensor:
        """Σ_c target_c (z_m − z_c) for probabilities as targets, smoothed and weighted."""
        shares = (1 - self.label_smoothing) * row_targets + self.label_smoothing / rows.shape[1]
        class_weights = self._class_weights(rows)
        shares = shares if class_weights is None else shares * class_weights
        # without the share of m, next to which the gradient at m would lose the others
        shares = shares.scatter(1, top, 0.0)
        return ((rows.gather(1, top) - rows) * shares).sum(dim=1)

    def errors(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Total weight of the wrongly predicted targets of each sample, shape (N,)."""
        rows, row_targets, positions = self._rows(outputs, targets)
        classes = row_targets.argmax(dim=1) if row_targets.is_floating_point() else row_targets
        like = rows.new_empty(len(rows), 0, dtype=torch.float64)
        wrong = (rows.argmax(dim=1) != classes) * self.row_weights(like, row_targets)
        return positions.by_sample(wrong).sum(dim=1)

    def margins(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """z_y − max_{j≠y} z_j of each position, and which positions count; (N, positions) each."""
        rows, row_targets, positions = self._rows(outputs, targets)
        shown = self.row_weights(rows, row_targets) > 0
        label = row_targets.clamp(0, rows.shape[1] - 1)[:, None]
        others = rows.scatter(1, label, -torch.inf).amax(dim=1)
        margins = rows.gather(1, label).squeeze(1) - others
        return positions.by_sample(margins), positions.by_sample(shown)

    def curvature(self, outputs: Tensor, targets: Tensor) -> OutputCurvature:
        """The softmax Hessian times the targets' total weight, of each position."""
        rows, row_targets, positions = self._rows(outputs, targets)
        inner = SoftmaxCurvature(rows, self.row_masses(rows, row_targets))
        return inner if positions.count == 1 else PositionCurvature(inner, positions)

    def rounding(self, outputs: Tensor, targets: Tensor) -> None:
        """None: no digits cancel."""

    def counts_alike(self) -> bool:
        """Whether all valid labels have the same weight."""
        return self.class_weights is None and self.ignore_index < 0

    def row_masses(self, rows: Tensor, row_targets: Tensor) -> Tensor:
        """What the softmax Hessian of each position is multiplied by; `rows` gives the type."""
        class_weights = self._class_weights(rows)
        if class_weights is None and not row_targets.is_floating_point():
            return self._weight_of(row_targets, rows.new_ones(len(rows)), None)
        if class_weights is None:
            class_weights = rows.new_ones(row_targets.shape[1])
        smooth = self.label_smoothing
        if row_targets.is_floating_point():
            mass = (1 - smooth) * (row_targets.to(rows.dtype) @ class_weights)
            return mass + smooth * class_weights.mean()
        ones = rows.new_ones(len(rows))
        keep = self._weight_of(row_targets, ones, None)
        hard = self._weight_of(row_targets, ones, class_weights)
        return (1 - smooth) * hard + smooth * class_weights.mean() * keep
