"""Softmax cross-entropy for samples, tokens or pixels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import SpiritlevelError
from ...math.curvature import SoftmaxCurvature
from ...math.positions import OutputCurvature, PositionCurvature, Positions
from .protocol import as_mask


class CrossEntropy:
    """Softmax cross-entropy with class indices or class probabilities as targets."""

    def __init__(
        self,
        *,
        label_smoothing: float = 0.0,
        class_weights: Tensor | None = None,
        ignore_index: int = -100,
        class_dim: int | None = None,
    ) -> None:
        """The arguments of `torch.nn.CrossEntropyLoss`, with the same meaning.

        `class_dim` is the dimension of the outputs that holds the classes: 1 as in torch, or -1 as
        in language models. None infers it from the shape of the targets.
        """
        self.label_smoothing = label_smoothing
        self.class_weights = class_weights
        self.ignore_index = ignore_index
        self.class_dim = class_dim

    @property
    def name(self) -> str:
        """The name that settings and messages show."""
        details = []
        if self.label_smoothing:
            details.append(f"label_smoothing={self.label_smoothing}")
        if self.class_weights is not None:
            details.append("class weights")
        return "cross_entropy" + (f" ({', '.join(details)})" if details else "")

    def check(self, outputs: Tensor, targets: Tensor, *, where: str) -> None:
        """Refuse outputs other than (N, C), (N, C, …), (N, …, C), and targets that do not fit."""
        if outputs.dim() < 2:
            raise SpiritlevelError(
                "The loss 'cross_entropy' needs outputs of shape (samples, classes), or with "
                f"positions (samples, positions, classes). Got {tuple(outputs.shape)} in {where}. "
                "Return class scores from the model, or pass forward=... that does; for one output "
                "use loss='bce' or 'mse'."
            )
        last = outputs.dim() - 1
        if self.class_dim is not None and not 1 <= abs(self.class_dim) <= last:
            raise SpiritlevelError(
                f"The 'class_dim' of CrossEntropy must be one of 1 to {last} or -1 to -{last} for "
                f"outputs of shape {tuple(outputs.shape)} in {where}. Got {self.class_dim}. Use 1 "
                "as torch does, or -1 for sequences."
            )
        places = self._possible_class_dims(outputs, targets)
        if not places:
            self._refuse_targets(outputs, targets, where)
        if len(places) > 1:
            raise SpiritlevelError(
                f"Outputs of shape {tuple(outputs.shape)} with targets {tuple(targets.shape)} in "
                f"{where} are ambiguous: the classes may be in dimension 1 or in the last. Pass "
                "loss=spiritlevel.model.losses.CrossEntropy(class_dim=1), or class_dim=-1 for "
                "sequences."
            )
        num_classes = outputs.shape[places[0]]
        if num_classes < 2:
            raise SpiritlevelError(
                "The loss 'cross_entropy' needs outputs of shape (samples, classes) with at least "
                f"2 classes. Got {tuple(outputs.shape)} in {where}. For one output use "
                "loss='bce' or 'mse'."
            )
        if self.class_weights is not None and len(self.class_weights) != num_classes:
            raise SpiritlevelError(
                f"The loss needs one class weight per class ({num_classes}). "
                f"Got {len(self.class_weights)}. Pass a weight for every output of the model."
            )

    def _possible_class_dims(self, outputs: Tensor, targets: Tensor) -> list[int]:
        """Dimensions of the outputs that could hold the classes of these targets."""
        last = outputs.dim() - 1
        places = [1, last] if self.class_dim is None else [self.class_dim % outputs.dim()]
        if (
            targets.is_floating_point()
        ):  # probabilities: torch's convention, unless class_dim says otherwise
            return places[:1] if targets.shape == outputs.shape else []
        shape = outputs.shape
        fitting = [d for d in places if d and targets.shape == shape[:d] + shape[d + 1 :]]
        return list(dict.fromkeys(fitting))

    def _refuse_targets(self, outputs: Tensor, targets: Tensor, where: str) -> None:
        if targets.is_floating_point():
            raise SpiritlevelError(
                "Floating-point targets of 'cross_entropy' are class probabilities and need "
                f"the outputs' shape {tuple(outputs.shape)}. Got {tuple(targets.shape)} in "
                f"{where}. For class numbers convert them: y.long()."
            )
        shapes = {tuple(outputs.shape[:1] + outputs.shape[2:]), tuple(outputs.shape[:-1])}
        raise SpiritlevelError(
            f"The targets of 'cross_entropy' need shape {' or '.join(map(str, sorted(shapes)))} to "
            f"go with outputs of shape {tuple(outputs.shape)}. Got {tuple(targets.shape)} in "
            f"{where}. Pass one class number per sample, or one per position."
        )

    def positions(self, outputs: Tensor, targets: Tensor) -> Positions:
        """The positions of a sample; the classes of one position interact."""
        class_dim = self._possible_class_dims(outputs, targets)[0]
        return Positions(tuple(outputs.shape[1:]), class_dim)

    def num_columns(self, outputs: Tensor, targets: Tensor) -> int:
        """C − 1 per position."""
        positions = self.positions(outputs, targets)
        return positions.count * (positions.num_classes - 1)

    def invalid(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Labels that are neither a class nor `ignore_index`."""
        if targets.is_floating_point():
            return ~torch.isfinite(targets)
        outside = (targets < 0) | (targets >= self.positions(outputs, targets).num_classes)
        return outside & (targets != self.ignore_index)

    def refuse_invalid(self, outputs: Tensor, targets: Tensor, *, where: str) -> None:
        """Raise SpiritlevelError for the first invalid target."""
        bad = targets[self.invalid(outputs, targets)]
        num_classes = self.positions(outputs, targets).num_classes
        raise SpiritlevelError(
            f"Labels must lie in [0, {num_classes - 1}], as the model has {num_classes} outputs. "
            f"Got {bad[0].item()} in {where}. Renumber the labels from 0, or pass "
            "loss=torch.nn.CrossEntropyLoss(ignore_index=...) if that value marks samples to "
            "leave out."
        )

    def apply_mask(self, targets: Tensor, mask: Tensor, *, where: str) -> Tensor:
        """The targets with `ignore_index` where the mask is 0."""
        shown = as_mask(mask, targets.shape)
        if targets.is_floating_point() or shown is None:
            raise SpiritlevelError(
                "A mask of the loss 'cross_entropy' goes with class numbers and has their shape "
                f"{tuple(targets.shape)}, or one entry per sample. Got {tuple(mask.shape)} with "
                f"{targets.dtype} targets in {where}. Reshape the mask that forward returns."
            )
        return targets.masked_fill(~shown, self.ignore_index)

    def values(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each sample, shape (N,): the sum over its positions."""
        rows, row_targets, positions = self._rows(outputs, targets)
        values = F.cross_entropy(
            rows,
            row_targets,
            weight=self._class_weights(outputs),
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            reduction="none",
        )
        return positions.by_sample(values).sum(dim=1)

    def errors(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Total weight of the wrongly predicted targets of each sample, shape (N,)."""
        rows, row_targets, positions = self._rows(outputs, targets)
        classes = row_targets.argmax(dim=1) if row_targets.is_floating_point() else row_targets
        wrong = (rows.argmax(dim=1) != classes) * self.row_weights(rows, row_targets)
        return positions.by_sample(wrong).sum(dim=1)

    def margins(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """z_y − max_{j≠y} z_j of each position, and which positions count; (N, positions) each."""
        rows, row_targets, positions = self._rows(outputs, targets)
        shown = self.row_weights(rows, row_targets) > 0
        label = row_targets.clamp(0, rows.shape[1] - 1)[:, None]
        others = rows.scatter(1, label, -torch.inf).amax(dim=1)
        margins = rows.gather(1, label).squeeze(1) - others
        return positions.by_sample(margins), positions.by_sample(shown)

    def weights(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The weights of the targets' classes, 0 where ignored, summed over the positions."""
        rows, row_targets, positions = self._rows(outputs, targets)
        return positions.by_sample(self.row_weights(rows, row_targets)).sum(dim=1)

    def row_weights(self, rows: Tensor, row_targets: Tensor) -> Tensor:
        """The weight of each position's target."""
        ones = rows.new_ones(len(rows))
        if row_targets.is_floating_point():
            return ones
        return self._weight_of(row_targets, ones, self._class_weights(rows))

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

    def row_targets(self, targets: Tensor, positions: Positions) -> Tensor:
        """The targets of every position, in the order of the rows."""
        return positions.rows(targets) if targets.is_floating_point() else targets.flatten()

    def _rows(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Positions]:
        positions = self.positions(outputs, targets)
        return positions.rows(outputs), self.row_targets(targets, positions), positions

    def _weight_of(self, targets: Tensor, ones: Tensor, class_weights: Tensor | None) -> Tensor:
        """The weight of each target's class, 0 where it is ignored."""
        if class_weights is not None:
            # out-of-range labels are refused later; indexing with them would crash a GPU for good
            ones = class_weights[targets.clamp(0, len(class_weights) - 1)]
        return ones * (targets != self.ignore_index)

    def _class_weights(self, outputs: Tensor) -> Tensor | None:
        return None if self.class_weights is None else self.class_weights.to(outputs)
