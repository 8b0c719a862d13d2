"""Softmax cross-entropy for samples, tokens or pixels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...math.curvature import SoftmaxCurvature
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
        """The loss of each position times the weight of its target."""
        if row_targets.is_floating_point():
            row_targets = row_targets.to(rows.dtype)
        return F.cross_entropy(
            rows,
            row_targets,
            weight=self._class_weights(rows),
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            reduction="none",
        )

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
