"""Losses: one value a sample, and the Hessian of that value in the outputs.

Every loss is reduced as torch reduces it with `reduction="mean"`: L = Σ_n ℓ_n / Σ_n weight_n, where
the weights are 1 except for class weights and ignored targets.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ._core import SpiritlevelError
from .math.curvature import DenseCurvature, DiagonalCurvature, OutputCurvature, SoftmaxCurvature


class Loss(Protocol):
    """What the rest of the library needs to know about a loss."""

    @property
    def name(self) -> str:
        """For settings and messages."""
        ...

    def check(self, outputs: Tensor, targets: Tensor, *, where: str) -> None:
        """Raise SpiritlevelError if the shapes do not fit; `where` names the batch."""
        ...

    def invalid(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Which targets lie outside the range; left on the device, nobody waits for it."""
        ...

    def explain(self, outputs: Tensor, targets: Tensor, *, where: str) -> None:
        """Raise SpiritlevelError for the first invalid target."""
        ...

    def values(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """ℓ_n, shape (N,)."""
        ...

    def weights(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """What ℓ_n is averaged by, shape (N,)."""
        ...

    def curvature(self, outputs: Tensor, targets: Tensor) -> OutputCurvature:
        """∇²ℓ_n in the outputs, flattened to (N, C)."""
        ...


class CrossEntropy:
    """Softmax cross-entropy with class indices or class probabilities as targets."""

    def __init__(
        self,
        *,
        label_smoothing: float = 0.0,
        class_weights: Tensor | None = None,
        ignore_index: int = -100,
    ) -> None:
        """The options of `torch.nn.CrossEntropyLoss`, with the same meaning."""
        self.label_smoothing = label_smoothing
        self.class_weights = class_weights
        self.ignore_index = ignore_index

    @property
    def name(self) -> str:
        """For settings and messages."""
        options = []
        if self.label_smoothing:
            options.append(f"label_smoothing={self.label_smoothing}")
        if self.class_weights is not None:
            options.append("class weights")
        return "cross_entropy" + (f" ({', '.join(options)})" if options else "")

    def check(self, outputs: Tensor, targets: Tensor, *, where: str) -> None:
        """Outputs (N, C); targets (N,) whole numbers in [0, C) or (N, C) probabilities."""
        if outputs.dim() != 2 or outputs.shape[1] < 2:
            raise SpiritlevelError(
                "The loss 'cross_entropy' needs outputs of shape (samples, classes) with at least "
                f"2 classes. Got {tuple(outputs.shape)} in {where}. Return class scores from the "
                "model, or pass forward=... that does; for one output use loss='bce' or 'mse'."
            )
        num_samples, num_classes = outputs.shape
        if self.class_weights is not None and len(self.class_weights) != num_classes:
            raise SpiritlevelError(
                f"The class weights of the loss must be one a class ({num_classes}). "
                f"Got {len(self.class_weights)}. Pass a weight for every output of the model."
            )
        if targets.is_floating_point():
            if targets.shape != outputs.shape:
                raise SpiritlevelError(
                    "Floating-point targets of 'cross_entropy' are class probabilities and need "
                    f"the outputs' shape {tuple(outputs.shape)}. Got {tuple(targets.shape)} in "
                    f"{where}. For class numbers convert them: y.long()."
                )
            return
        if targets.shape != (num_samples,):
            raise SpiritlevelError(
                f"The targets of 'cross_entropy' need shape ({num_samples},) to go with outputs of "
                f"shape {tuple(outputs.shape)}. Got {tuple(targets.shape)} in {where}. "
                "Pass one class number a sample."
            )

    def invalid(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Labels that are no class and are not to be ignored."""
        if targets.is_floating_point():
            return ~torch.isfinite(targets)
        outside = (targets < 0) | (targets >= outputs.shape[1])
        return outside & (targets != self.ignore_index)

    def explain(self, outputs: Tensor, targets: Tensor, *, where: str) -> None:
        """Raise SpiritlevelError for the first invalid target."""
        bad = targets[self.invalid(outputs, targets)]
        num_classes = outputs.shape[1]
        raise SpiritlevelError(
            f"Labels must lie in [0, {num_classes - 1}], as the model has {num_classes} outputs. "
            f"Got {bad[0].item()} in {where}. Renumber the labels from 0, or pass "
            "loss=torch.nn.CrossEntropyLoss(ignore_index=...) if that value marks samples to "
            "leave out."
        )

    def values(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """ℓ_n, shape (N,)."""
        return F.cross_entropy(
            outputs,
            targets,
            weight=self._class_weights(outputs),
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            reduction="none",
        )

    def weights(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The weight of each sample's class; 0 where the target is ignored."""
        ones = torch.ones_like(outputs[:, 0])
        if targets.is_floating_point():
            return ones
        return self._weight_of(targets, ones, self._class_weights(outputs))

    def curvature(self, outputs: Tensor, targets: Tensor) -> SoftmaxCurvature:
        """The softmax Hessian times the targets' total weight."""
        num_classes = outputs.shape[1]
        class_weights = self._class_weights(outputs)
        if class_weights is None:
            class_weights = torch.ones_like(outputs[0])
        smooth = self.label_smoothing
        if targets.is_floating_point():
            mass = (1 - smooth) * (targets.to(outputs.dtype) @ class_weights)
            mass = mass + smooth * class_weights.mean() * torch.ones_like(mass)
        else:
            ones = torch.ones_like(outputs[:, 0])
            keep = self._weight_of(targets, ones, None)
            hard = self._weight_of(targets, ones, class_weights)
            mass = (1 - smooth) * hard + smooth * class_weights.sum() / num_classes * keep
        return SoftmaxCurvature(outputs, mass)

    def _weight_of(self, targets: Tensor, ones: Tensor, class_weights: Tensor | None) -> Tensor:
        """The weight of each target's class, 0 where it is ignored."""
        if class_weights is not None:
            # out-of-range labels are reported elsewhere; here they must not stop a GPU for good
            ones = class_weights[targets.clamp(0, len(class_weights) - 1)]
        return ones * (targets != self.ignore_index)

    def _class_weights(self, outputs: Tensor) -> Tensor | None:
        return None if self.class_weights is None else self.class_weights.to(outputs)


def _check_same_shape(name: str, outputs: Tensor, targets: Tensor, where: str) -> None:
    if outputs.shape != targets.shape:
        raise SpiritlevelError(
            f"The loss {name!r} needs targets of the outputs' shape {tuple(outputs.shape)}. "
            f"Got {tuple(targets.shape)} in {where}. Reshape one of them, for example y[:, None]."
        )


def _unit_weights(outputs: Tensor) -> Tensor:
    return outputs.new_ones(outputs.shape[0])


def _refuse_nonfinite(name: str, where: str) -> None:
    raise SpiritlevelError(
        f"The targets of the loss {name!r} must be finite. Got NaN or infinity in {where}. "
        "Remove or repair those samples."
    )


class MeanSquaredError:
    """Squared error averaged over the outputs of a sample, as `torch.nn.MSELoss` does."""

    name = "mse"

    def check(self, outputs: Tensor, targets: Tensor, *, where: str) -> None:
        """Outputs and targets of one shape."""
        _check_same_shape(self.name, outputs, targets, where)

    def invalid(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Targets that are no numbers."""
        return ~torch.isfinite(targets)

    def explain(self, outputs: Tensor, targets: Tensor, *, where: str) -> None:
        """Raise SpiritlevelError."""
        _refuse_nonfinite(self.name, where)

    def values(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """ℓ_n, shape (N,)."""
        return (outputs - targets).reshape(len(outputs), -1).square().mean(dim=1)

    def weights(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One a sample."""
        return _unit_weights(outputs)

    def curvature(self, outputs: Tensor, targets: Tensor) -> DiagonalCurvature:
        """2/C times the identity."""
        flat = outputs.reshape(len(outputs), -1)
        return DiagonalCurvature(torch.full_like(flat, 2.0 / flat.shape[1]))


class BinaryCrossEntropy:
    """Sigmoid cross-entropy on logits, averaged over a sample's outputs, as in torch."""

    name = "bce"

    def __init__(self, *, weight: Tensor | None = None, pos_weight: Tensor | None = None) -> None:
        """The options of `torch.nn.BCEWithLogitsLoss`, with the same meaning."""
        self.weight = weight
        self.pos_weight = pos_weight

    def check(self, outputs: Tensor, targets: Tensor, *, where: str) -> None:
        """Outputs and targets of one shape."""
        _check_same_shape(self.name, outputs, targets, where)

    def invalid(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Targets outside [0, 1]."""
        return ~((targets >= 0) & (targets <= 1))

    def explain(self, outputs: Tensor, targets: Tensor, *, where: str) -> None:
        """Raise SpiritlevelError with the range that came."""
        low, high = float(targets.min()), float(targets.max())
        raise SpiritlevelError(
            "The targets of the loss 'bce' must lie in [0, 1]. "
            f"Got values from {low:g} to {high:g} in {where}. Convert labels to 0 and 1."
        )

    def values(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """ℓ_n, shape (N,)."""
        elements = F.binary_cross_entropy_with_logits(
            outputs,
            targets.to(outputs.dtype),
            weight=None if self.weight is None else self.weight.to(outputs),
            pos_weight=None if self.pos_weight is None else self.pos_weight.to(outputs),
            reduction="none",
        )
        return elements.reshape(len(outputs), -1).mean(dim=1)

    def weights(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One a sample."""
        return _unit_weights(outputs)

    def curvature(self, outputs: Tensor, targets: Tensor) -> DiagonalCurvature:
        """σ(z)σ(−z) on the diagonal; the product of two sigmoids does not cancel."""
        targets = targets.to(outputs.dtype)
        diagonal = outputs.sigmoid() * (-outputs).sigmoid()
        if self.pos_weight is not None:
            diagonal = diagonal * (self.pos_weight.to(outputs) * targets + (1 - targets))
        if self.weight is not None:
            diagonal = diagonal * self.weight.to(outputs)
        flat = diagonal.reshape(len(outputs), -1)
        return DiagonalCurvature(flat / flat.shape[1])


class CallableLoss:
    """Any twice differentiable `(outputs, targets) -> one loss a sample`."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], name: str) -> None:
        """`function` must not reduce over the samples."""
        self.function = function
        self.name = name

    def check(self, outputs: Tensor, targets: Tensor, *, where: str) -> None:
        """One loss a sample comes back."""
        values = self.function(outputs, targets)
        if not isinstance(values, Tensor) or values.shape[:1] != outputs.shape[:1]:
            got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise SpiritlevelError(
                f"The loss {self.name!r} must return one value a sample, shape "
                f"({len(outputs)},). Got {got} in {where}. Use reduction='none' in it."
            )

    def invalid(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """What a user's loss admits is not known; its values are checked."""
        return ~torch.isfinite(self.values(outputs, targets))

    def explain(self, outputs: Tensor, targets: Tensor, *, where: str) -> None:
        """Raise SpiritlevelError."""
        raise SpiritlevelError(
            f"The loss {self.name!r} must be finite. It is NaN or infinite in {where} although "
            "the outputs are finite. Check its targets there."
        )

    def values(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """ℓ_n, shape (N,); elementwise losses are averaged within a sample."""
        if targets.is_floating_point():  # the outputs come in float64, whatever the model's dtype
            targets = targets.to(outputs.dtype)
        return self.function(outputs, targets).reshape(len(outputs), -1).mean(dim=1)

    def weights(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One a sample."""
        return _unit_weights(outputs)

    def curvature(self, outputs: Tensor, targets: Tensor) -> DenseCurvature:
        """The C×C Hessian of each sample's loss by double backward through the loss alone."""
        with torch.enable_grad():
            flat = outputs.detach().reshape(len(outputs), -1).requires_grad_()
            total = self.values(flat.reshape(outputs.shape), targets).sum()
            (gradient,) = torch.autograd.grad(total, flat, create_graph=True)
            if not gradient.requires_grad:  # a loss linear in its outputs has no curvature
                return DenseCurvature(flat.new_zeros(*flat.shape, flat.shape[1]))
            rows = []
            for column in gradient.unbind(dim=1):
                (row,) = torch.autograd.grad(
                    column.sum(), flat, retain_graph=True, allow_unused=True
                )
                rows.append(torch.zeros_like(flat) if row is None else row)
        return DenseCurvature(torch.stack(rows, dim=1).detach())


_BY_NAME: dict[str, Callable[[], Loss]] = {
    "cross_entropy": CrossEntropy,
    "mse": MeanSquaredError,
    "bce": BinaryCrossEntropy,
}


def resolve(loss: str | nn.Module | Callable[[Tensor, Tensor], Tensor] | Loss) -> Loss:
    """Turn what a user passes as `loss=` into a Loss.

    >>> resolve("mse").name
    'mse'
    >>> resolve(nn.CrossEntropyLoss(label_smoothing=0.1)).name
    'cross_entropy (label_smoothing=0.1)'
    """
    if isinstance(loss, str):
        if loss not in _BY_NAME:
            raise SpiritlevelError(
                f"The 'loss' argument must be one of {', '.join(map(repr, _BY_NAME))}, a torch "
                f"loss module, or a function (outputs, targets) -> one loss a sample. Got {loss!r}."
            )
        return _BY_NAME[loss]()
    if isinstance(loss, nn.Module) and getattr(loss, "reduction", "mean") == "sum":
        raise SpiritlevelError(
            f"The 'loss' argument must average over samples. Got {loss!r} with reduction='sum'. "
            "Pass the same loss with reduction='mean' and multiply the result by the number of "
            "samples if you need the sum."
        )
    if isinstance(loss, nn.CrossEntropyLoss):
        return CrossEntropy(
            label_smoothing=loss.label_smoothing,
            class_weights=loss.weight,
            ignore_index=loss.ignore_index,
        )
    if isinstance(loss, nn.MSELoss):
        return MeanSquaredError()
    if isinstance(loss, nn.BCEWithLogitsLoss):
        return BinaryCrossEntropy(weight=loss.weight, pos_weight=loss.pos_weight)
    if isinstance(loss, nn.Module):
        unreduced = copy.copy(loss)
        if hasattr(loss, "reduction"):
            unreduced.reduction = "none"  # type: ignore[assignment]
        return CallableLoss(unreduced, type(loss).__name__)
    if isinstance(loss, CrossEntropy | MeanSquaredError | BinaryCrossEntropy | CallableLoss):
        return loss
    if callable(loss):
        return CallableLoss(loss, getattr(loss, "__name__", type(loss).__name__))
    raise SpiritlevelError(
        "The 'loss' argument must be a name, a torch loss module or a function "
        f"(outputs, targets) -> one loss a sample. Got {type(loss).__name__}."
    )
