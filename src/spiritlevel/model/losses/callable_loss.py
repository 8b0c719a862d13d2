"""A user's function or module as a loss: one value per sample, or the mean of a batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from ...ground.errors import SpiritlevelError
from ...math.curvature import DenseCurvature
from ...math.positions import Positions
from .derivative_check import check_derivatives, rounding_of_second
from .loss_call import LossCall
from .mean_check import call_part, check_mean, check_one_target_per_sample, check_samples
from .weightings import Weighting, by_element, by_sample

LossFunction = Callable[[Tensor, Tensor], Any]
NO_SECOND_DERIVATIVE = ("is not implemented", "once_differentiable")


class CallableLoss:
    """Any twice differentiable `(outputs, targets)` -> one loss per sample, or their mean.

    A function that returns the mean of a batch is called for each sample alone. If the mean of what
    it returns then is not what it returns for the batch, it is refused.
    """

    def __init__(
        self,
        function: LossFunction,
        name: str,
        *,
        mean: LossFunction | None = None,
        weightings: Sequence[Weighting] = (by_element,),
    ) -> None:
        """`mean` is the user's loss as it is; `function` is the same before it is reduced.

        Every batch is compared with `mean`, and those of the `weightings` stay that agree with it.
        """
        self.name = name
        self._unreduced = function if isinstance(function, LossCall) else LossCall(function)
        self._mean = self._unreduced if mean is None else LossCall(mean)
        self._weightings = list(weightings)
        self._vectorizes = True  # until it turns out that it does not

    def check(self, outputs: Tensor, targets: Tensor, *, where: str) -> None:
        """Refuse a loss whose mean, samples or derivatives are not what they seem to be."""
        wide = outputs.detach().double()
        check_one_target_per_sample(self.name, outputs, targets, where)
        result = self._first_call(wide, targets, where)
        self._check_result(result, outputs, where)
        self._check_constants(result, where)
        values = self.values(wide, targets).detach()
        if not len(outputs) or not bool((torch.isfinite(values) & _finite(outputs)).all()):
            return  # the surface refuses them with its own text
        with torch.no_grad():
            if not self._is_reduced(result, outputs):
                check_samples(self.name, self.values, values, wide, targets, where)
            weights = self._possible_weights(result, wide, targets)
            agreeing = check_mean(self.name, self._mean, values, weights, wide, targets, where)
        if not self._is_reduced(result, outputs):
            self._weightings = [self._weightings[index] for index in agreeing]
        check_derivatives(self.name, self.values, wide, targets, where)

    def _first_call(self, outputs: Tensor, targets: Tensor, where: str) -> Any:
        try:
            with torch.enable_grad():
                return self._unreduced(outputs, targets)
        except (SpiritlevelError, MemoryError, torch.cuda.OutOfMemoryError):
            raise
        except Exception as error:
            cause = str(error).strip().splitlines() or [""]
            raise SpiritlevelError(
                f"The loss {self.name!r} is called as loss(outputs, targets), with float64 outputs "
                f"of shape {tuple(outputs.shape)} and {targets.dtype} targets of shape "
                f"{tuple(targets.shape)}. In {where} it raised {type(error).__name__}: {cause[0]}. "
                "Pass a function (outputs, targets) that calls it as it needs; constants belong in "
                "buffers of a module, or follow the outputs: constant.to(outputs)."
            ) from error

    def _check_result(self, result: Any, outputs: Tensor, where: str) -> None:
        """Refuse what is neither one number per sample nor one for the batch."""
        if isinstance(result, Tensor) and result.is_floating_point():
            if result.numel() == 1 or result.shape[:1] == outputs.shape[:1]:
                return
            got = str(tuple(result.shape))
        else:
            got = str(result.dtype) if isinstance(result, Tensor) else type(result).__name__
        raise SpiritlevelError(
            f"The loss {self.name!r} must return one value per sample, shape ({len(outputs)},), or "
            f"the mean of the batch. Got {got} in {where}. Use reduction='none' in it."
        )

    def _check_constants(self, result: Tensor, where: str) -> None:
        """Refuse a loss that depends on something trainable besides the outputs."""
        if result.requires_grad:  # the outputs it was given do not
            raise SpiritlevelError(
                f"The loss {self.name!r} must depend on the model through the outputs alone. In "
                f"{where} it uses another tensor that needs a gradient. If that is a constant, "
                "such as a temperature, use tensor.detach() in the loss; if it is a weight of the "
                "model, move that part of the loss into the model's outputs."
            )

    def invalid(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Samples whose loss is not finite: which targets a user's function accepts is unknown."""
        values = self.values(outputs.double(), targets)
        return _finite(outputs) & ~torch.isfinite(values)

    def refuse_invalid(self, outputs: Tensor, targets: Tensor, *, where: str) -> None:
        """Raise SpiritlevelError: some loss is not finite."""
        raise SpiritlevelError(
            f"The loss {self.name!r} must be finite. It is NaN or infinite in {where} although "
            "the outputs are finite. Check its targets there; the mean of a sample that does not "
            "count is NaN as well."
        )

    def apply_mask(self, targets: Tensor, mask: Tensor, *, where: str) -> Tensor:
        """Raise SpiritlevelError: only the function itself could apply a mask."""
        raise SpiritlevelError(
            f"The loss {self.name!r} is a user's function, and a mask cannot be applied to it from "
            f"outside ({where}). Put the mask into the targets and use it in the function."
        )

    def values(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each sample, shape (N,): the sum of the values that belong to it."""
        call = self._unreduced.prepared(outputs)
        result = call(outputs, targets)
        if self._is_reduced(result, outputs):
            return self._one_by_one(call, outputs, targets)
        values: Tensor = result.reshape(len(outputs), -1).sum(dim=1)
        return values

    def _one_by_one(self, call: LossFunction, outputs: Tensor, targets: Tensor) -> Tensor:
        """What the loss returns for each sample alone."""
        if self._vectorizes:
            try:
                return vmap(lambda z, y: call(z[None], y[None]).reshape(()))(outputs, targets)
            except torch.cuda.OutOfMemoryError:
                raise
            except Exception:  # a loss with branches or numpy in it has to be called N times
                self._vectorizes = False
        pairs = zip(outputs.split(1), targets.split(1), strict=True)
        return torch.stack([call_part(self.name, call, z, y).reshape(()) for z, y in pairs])

    def weights(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """What the sum of the values is divided by, as far as each sample adds to it."""
        with torch.no_grad():
            result = self._unreduced(outputs.detach().double(), targets)
        return self._possible_weights(result, outputs, targets)[0]

    def _possible_weights(
        self, result: Tensor, outputs: Tensor, targets: Tensor
    ) -> Sequence[Tensor]:
        """The weights by every weighting that agrees with the batches so far."""
        if self._is_reduced(result, outputs):
            return [by_sample(outputs, targets)]
        rows = result.reshape(len(outputs), -1)
        return [weigh(rows, targets) for weigh in self._weightings]

    def _is_reduced(self, result: Tensor, outputs: Tensor) -> bool:
        """Whether this is one number for several samples."""
        return result.numel() == 1 and len(outputs) > 1

    def positions(self, outputs: Tensor, targets: Tensor) -> Positions:
        """One position: all outputs of a sample may interact in the function."""
        return Positions((math.prod(outputs.shape[1:]),), 1)

    def num_columns(self, outputs: Tensor, targets: Tensor) -> int:
        """One per output."""
        return math.prod(outputs.shape[1:])

    def curvature(self, outputs: Tensor, targets: Tensor) -> DenseCurvature:
        """The C×C Hessian of each sample's loss by double backward through the loss alone."""
        with torch.enable_grad():
            flat = outputs.detach().reshape(len(outputs), -1).requires_grad_()
            total = self.values(flat.reshape(outputs.shape), targets).sum()
            (gradient,) = torch.autograd.grad(total, flat, create_graph=True)
            if not gradient.requires_grad:  # a loss linear in its outputs has no curvature
                return DenseCurvature(flat.new_zeros(*flat.shape, flat.shape[1]))
            rows = [self._row(column, flat) for column in gradient.unbind(dim=1)]
        return DenseCurvature(torch.stack(rows, dim=1).detach())

    def rounding(self, outputs: Tensor, targets: Tensor) -> Tensor | None:
        """What its second derivatives may lose if they are differences of numbers next to 1."""
        return rounding_of_second(self.values, outputs.detach().double(), targets)

    def _row(self, column: Tensor, flat: Tensor) -> Tensor:
        try:
            (row,) = torch.autograd.grad(column.sum(), flat, retain_graph=True, allow_unused=True)
        except RuntimeError as error:
            if not any(text in str(error) for text in NO_SECOND_DERIVATIVE):
                raise
            raise SpiritlevelError(
                f"The loss {self.name!r} must have second derivatives. torch says: "
                f"{str(error).strip().splitlines()[0]}. Write the loss with plain tensor "
                "operations."
            ) from error
        return torch.zeros_like(flat) if row is None else row


def _finite(outputs: Tensor) -> Tensor:
    """The samples whose outputs are all finite."""
    return torch.isfinite(outputs).reshape(len(outputs), -1).all(dim=1)
