"""Which losses are torch's own, so that what is known about torch's code holds for them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import nn

# What a subclass may define without changing what its parent computes.
HARMLESS = {
    "__annotations__",
    "__doc__",
    "__firstlineno__",
    "__init__",
    "__module__",
    "__parameters__",
    "__qualname__",
    "__repr__",
    "__static_attributes__",
    "extra_repr",
}
_FUNCTIONS: dict[Callable[..., Any], type[nn.Module]] = {
    F.cross_entropy: nn.CrossEntropyLoss,
    F.nll_loss: nn.NLLLoss,
    F.mse_loss: nn.MSELoss,
    F.l1_loss: nn.L1Loss,
    F.smooth_l1_loss: nn.SmoothL1Loss,
    F.huber_loss: nn.HuberLoss,
    F.poisson_nll_loss: nn.PoissonNLLLoss,
    F.kl_div: nn.KLDivLoss,
    F.binary_cross_entropy: nn.BCELoss,
    F.binary_cross_entropy_with_logits: nn.BCEWithLogitsLoss,
    F.soft_margin_loss: nn.SoftMarginLoss,
    F.hinge_embedding_loss: nn.HingeEmbeddingLoss,
    F.multi_margin_loss: nn.MultiMarginLoss,
    F.multilabel_margin_loss: nn.MultiLabelMarginLoss,
    F.multilabel_soft_margin_loss: nn.MultiLabelSoftMarginLoss,
}
_FORWARDS = {kind: kind.forward for kind in _FUNCTIONS.values()}


def plain_kind(loss: nn.Module) -> type[nn.Module] | None:
    """The loss of torch that this module computes; None if its code is, or may be, another.

    >>> plain_kind(nn.MSELoss()).__name__
    'MSELoss'
    >>> class Doubled(nn.MSELoss):
    ...     def forward(self, outputs, targets):
    ...         return 2 * super().forward(outputs, targets)
    >>> plain_kind(Doubled()) is None
    True
    """
    kind = next((kind for kind in _FORWARDS if isinstance(loss, kind)), None)
    if kind is None or kind.forward is not _FORWARDS[kind]:
        return None
    added = [each for each in type(loss).__mro__ if each not in kind.__mro__]
    if any(set(vars(each)) - HARMLESS for each in added):
        return None
    is_hooked = loss._forward_hooks or loss._forward_pre_hooks
    replaced = {"forward", "_call_impl"} & set(vars(loss))
    return None if is_hooked or replaced or list(loss.children()) else kind


def as_module(function: Callable[..., Any]) -> nn.Module | None:
    """The module of a function of torch, possibly with options given by `functools.partial`.

    A function with reduction="none" has no mean of its own and stays a function.

    >>> as_module(functools.partial(F.cross_entropy, label_smoothing=0.1))
    CrossEntropyLoss()
    """
    options: dict[str, Any] = {}
    if isinstance(function, functools.partial) and not function.args:
        options, function = function.keywords, function.func
    try:
        kind = _FUNCTIONS.get(function)
    except TypeError:  # an object without a hash
        return None
    if kind is None or options.get("reduction") == "none":
        return None
    try:
        return kind(**options)
    except TypeError:  # an option that only the function has
        return None
