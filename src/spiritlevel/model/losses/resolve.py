"""What a user passes as `loss=`, turned into a Loss: the only place that decides about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

from torch import Tensor, nn

from ...errors import SpiritlevelError, brief
from ...need import need, one_of
from .callable_loss import CallableLoss
from .cross_entropy import CrossEntropy
from .elementwise import BinaryCrossEntropy, MeanSquaredError
from .loss_call import LossCall
from .margin_losses import differentiable_margin
from .negative_log_likelihood import NegativeLogLikelihood
from .plain_modules import as_module, plain_kind
from .protocol import Loss
from .torch_elementwise import ELEMENTWISE, TorchElementwise
from .weightings import by_element, possible_weightings

AnyLoss: TypeAlias = str | nn.Module | Callable[[Tensor, Tensor], Tensor] | Loss
_BY_NAME: dict[str, Callable[[], Loss]] = {
    "cross_entropy": CrossEntropy,
    "mse": MeanSquaredError,
    "bce": BinaryCrossEntropy,
}
_LOSSES = (
    CrossEntropy,
    NegativeLogLikelihood,
    MeanSquaredError,
    BinaryCrossEntropy,
    TorchElementwise,
    CallableLoss,
)


def resolve(loss: AnyLoss, model: nn.Module | None = None) -> Loss:
    """Turn what a user passes as `loss=` into a Loss.

    What torch's own modules compute is known. Everything else, subclasses included, is called as it
    is, and each batch is compared with what it returns. Parameters of a loss are constants, so it
    must not share any with the `model`.

    >>> resolve("mse").name
    'mse'
    >>> resolve(nn.CrossEntropyLoss(label_smoothing=0.1)).name
    'cross_entropy (label_smoothing=0.1)'
    """
    if isinstance(loss, str):
        names = ", ".join(map(repr, _BY_NAME))
        function = "a torch loss module, or a function (outputs, targets) -> one loss per sample"
        need("loss", loss, one_of(_BY_NAME), f"one of {names}, {function}")
        return _BY_NAME[loss]()
    if type(loss) in _LOSSES:
        return cast(Loss, loss)
    if isinstance(loss, _LOSSES):
        raise SpiritlevelError(
            "The 'loss' argument must not be a subclass of a loss of spiritlevel, whose closed "
            f"forms would not follow the change. Got {type(loss).__name__}. Pass a function "
            "(outputs, targets) -> one loss per sample."
        )
    if not callable(loss):
        raise SpiritlevelError(
            "The 'loss' argument must be a name, a torch loss module or a function "
            f"(outputs, targets) -> one loss per sample. Got {type(loss).__name__}."
        )
    called: Any = _uncompiled(loss)
    module = called if isinstance(called, nn.Module) else as_module(called)
    if module is None:
        return CallableLoss(called, getattr(called, "__name__", type(called).__name__))
    _check_module(module, model)
    return _of_module(module)


def _uncompiled(loss: Any) -> Any:
    """What torch.compile was given: compiled code has no second derivative."""
    return getattr(loss, "_orig_mod", getattr(loss, "_torchdynamo_orig_callable", loss))


def _check_module(module: nn.Module, model: nn.Module | None) -> None:
    if getattr(module, "reduction", "mean") == "sum":
        raise SpiritlevelError(
            f"The 'loss' argument must average over samples. Got {brief(module)} with "
            "reduction='sum'. Pass the same loss with reduction='mean' and multiply the result by "
            "the number of samples if you need the sum."
        )
    if any(each._backward_hooks or each._backward_pre_hooks for each in module.modules()):
        raise SpiritlevelError(
            f"The 'loss' argument must not have backward hooks, which may change its gradient. Got "
            f"{type(module).__name__} with such a hook. Remove it, or pass loss.forward."
        )
    if model is not None:
        trained = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
        for name, parameter in module.named_parameters():
            if id(parameter) in trained:
                raise SpiritlevelError(
                    "The 'loss' argument must depend on the model through the outputs alone. Got "
                    f"{type(module).__name__} whose parameter {name!r} is a trained weight of the "
                    "model. Move that part of the loss into the model's outputs."
                )


def _of_module(module: nn.Module) -> Loss:
    kind = plain_kind(module)
    options = cast(Any, module)
    reduction = getattr(module, "reduction", None)
    if kind is not None and reduction == "none" and _weights_classes(kind, options):
        raise SpiritlevelError(
            f"The mean of {type(module).__name__} with class weights and reduction='none' may be "
            "over samples or over weights. Pass the same loss with reduction='mean', or a function "
            "(outputs, targets) -> one loss per sample."
        )
    if kind is nn.CrossEntropyLoss:
        return CrossEntropy(
            label_smoothing=options.label_smoothing,
            class_weights=options.weight,
            ignore_index=options.ignore_index,
        )
    if kind is nn.NLLLoss:
        return NegativeLogLikelihood(
            class_weights=options.weight, ignore_index=options.ignore_index
        )
    if kind is nn.MSELoss:
        return MeanSquaredError()
    if kind is nn.BCEWithLogitsLoss:
        return BinaryCrossEntropy(weight=options.weight, pos_weight=options.pos_weight)
    if kind in ELEMENTWISE:
        return TorchElementwise(module)
    name = type(module).__name__
    if kind in (nn.MultiMarginLoss, nn.MultiLabelMarginLoss):
        return CallableLoss(differentiable_margin(options), name, mean=module)
    if "reduction" not in vars(module):
        return CallableLoss(module, name)
    weightings = (by_element,) if reduction == "none" else possible_weightings(module)
    unreduced = LossCall(module, reduction="none")
    return CallableLoss(unreduced, name, mean=module, weightings=weightings)


def _weights_classes(kind: type[nn.Module], options: Any) -> bool:
    return kind in (nn.CrossEntropyLoss, nn.NLLLoss) and options.weight is not None
