"""Losses whose targets are classes: a class number, or probabilities, at each position."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from ...ground.errors import SpiritlevelError
from ...math.positions import Positions
from ..host import counting_type
from .protocol import as_mask


class AbstractClassLoss(ABC):
    """Shapes, ignored targets, masks and class weights, as in torch."""

    kind: ClassVar[str]  # what messages call this loss
    takes_probabilities: ClassVar[bool]

    def __init__(
        self, *, class_weights: Tensor | None, ignore_index: int, class_dim: int | None
    ) -> None:
        """`class_dim` is the dimension of the outputs that holds the classes.

        It is 1 as in torch, or -1 as in language models. None infers it from the shape of the
        targets.
        """
        self.class_weights = None if class_weights is None else class_weights.detach()
        self.ignore_index = ignore_index
        self.class_dim = class_dim

    @abstractmethod
    def row_values(self, rows: Tensor, row_targets: Tensor) -> Tensor:
        """The loss of each position times the weight of its target, shape (rows,)."""

    def check(self, outputs: Tensor, targets: Tensor, *, where: str) -> None:
        """Refuse outputs other than (N, C), (N, C, …), (N, …, C), and targets that do not fit."""
        if outputs.dim() < 2:
            raise SpiritlevelError(
                f"The loss {self.kind!r} needs outputs of shape (samples, classes), or with "
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
                f"The loss {self.kind!r} needs outputs of shape (samples, classes) with at least "
                f"2 classes. Got {tuple(outputs.shape)} in {where}. For one output use "
                "loss='bce' or 'mse'."
            )
        if targets.is_floating_point() and self.ignore_index >= 0:
            raise SpiritlevelError(
                f"The 'ignore_index' of the loss {self.kind!r} is a class number, so the targets "
                f"must be class numbers too. Got ignore_index={self.ignore_index} and "
                f"{targets.dtype} targets in {where}. Leave ignore_index out, or convert the "
                "targets: y.long()."
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
        if targets.is_floating_point():
            # probabilities: torch's convention, unless class_dim says otherwise
            fits = self.takes_probabilities and targets.shape == outputs.shape
            return places[:1] if fits else []
        shape = outputs.shape
        fitting = [d for d in places if d and targets.shape == shape[:d] + shape[d + 1 :]]
        return list(dict.fromkeys(fitting))

    def _refuse_targets(self, outputs: Tensor, targets: Tensor, where: str) -> None:
        if targets.is_floating_point() and not self.takes_probabilities:
            raise SpiritlevelError(
                f"The targets of {self.kind!r} must be class numbers. Got {targets.dtype} of shape "
                f"{tuple(targets.shape)} in {where}. Convert them: y.long()."
            )
        if targets.is_floating_point():
            raise SpiritlevelError(
                f"Floating-point targets of {self.kind!r} are class probabilities and need "
                f"the outputs' shape {tuple(outputs.shape)}. Got {tuple(targets.shape)} in "
                f"{where}. For class numbers convert them: y.long()."
            )
        shape = outputs.shape
        places = [1, len(shape) - 1] if self.class_dim is None else [self.class_dim % len(shape)]
        shapes = {tuple(shape[:place] + shape[place + 1 :]) for place in places}
        raise SpiritlevelError(
            f"The targets of {self.kind!r} need shape {' or '.join(map(str, sorted(shapes)))} to "
            f"go with outputs of shape {tuple(outputs.shape)}. Got {tuple(targets.shape)} in "
            f"{where}. Pass one class number per sample, or one per position."
        )

    def positions(self, outputs: Tensor, targets: Tensor) -> Positions:
        """The positions of a sample; the classes of one position interact."""
        class_dim = self._possible_class_dims(outputs, targets)[0]
        return Positions(tuple(outputs.shape[1:]), class_dim)

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
                f"A mask of the loss {self.kind!r} goes with class numbers and has their shape "
                f"{tuple(targets.shape)}, or one entry per sample. Got {tuple(mask.shape)} with "
                f"{targets.dtype} targets in {where}. Reshape the mask that forward returns."
            )
        return targets.masked_fill(~shown, self.ignore_index)

    def values(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each sample, shape (N,): the sum over its positions."""
        return self.position_values(outputs, targets).sum(dim=1)

    def position_values(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each position of each sample, shape (N, positions)."""
        rows, row_targets, positions = self._rows(outputs, targets)
        return positions.by_sample(self.row_values(rows, row_targets))

    def weights(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The weights of the targets' classes, 0 where ignored, summed over the positions.

        In float64, where the device has it, whatever the outputs' type: in bfloat16 one cannot
        count to 257.
        """
        positions = self.positions(outputs, targets)
        row_targets = self.row_targets(targets, positions)
        like = outputs.new_empty(len(row_targets), 0, dtype=counting_type(outputs.device))
        return positions.by_sample(self.row_weights(like, row_targets)).sum(dim=1)

    def row_weights(self, rows: Tensor, row_targets: Tensor) -> Tensor:
        """The weight of each position's target; `rows` gives the type."""
        ones = rows.new_ones(len(rows))
        if row_targets.is_floating_point():
            return ones
        return self._weight_of(row_targets, ones, self._class_weights(rows))

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
