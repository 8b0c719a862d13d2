"""Running a network so that its loss can be differentiated three times."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ....ground.errors import SpiritlevelError
from ....model.autograd_graph import inside_transform
from ....model.convolutions import SPATIAL
from ....model.model_state import twice_differentiable
from ....model.weight_norm import weight_norm
from .cross_entropies import binary_cross_entropy_with_logits, cross_entropy
from .normalizations import batch_norm, instance_norm, layer_norm
from .weight_gradients import convolve, linear


@contextlib.contextmanager
def thrice_differentiable() -> Iterator[None]:
    """Compute a loss in this block to differentiate it three times. Its value is the same.

    Batch, instance and layer normalization are written out, because the third derivative of torch's
    own is wrong; weight_norm, because its second one is; attention, because its fused kernels have
    no second derivative; cross-entropies, because the derivatives of torch's own lose their digits
    in confident networks. Convolutions, linear layers and ReLU are recorded in forms that are
    cheaper to differentiate.
    """
    with twice_differentiable(), _Substitutes():
        yield


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """F.relu as a gate: open or closed is fixed, and what passes is linear.

    Differentiated twice, torch's own adds up tensors of zeros for how the gate itself would move;
    on VGG-small that is a tenth of the time.
    """
    if inplace:
        return F.relu(input, inplace=True)
    out: Tensor = _Relu.apply(input)  # type: ignore[no-untyped-call]
    return out


class _Relu(torch.autograd.Function):
    """max(x, 0), with a backward pass that is linear in its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = x.clamp_min(0)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (out,) = ctx.saved_tensors
        passed: Tensor = _Gate.apply(grads[0], out.detach())  # type: ignore[no-untyped-call]
        return passed


class _Gate(torch.autograd.Function):
    """The signal where `open` is positive, 0 elsewhere."""

    @staticmethod
    def forward(ctx: Any, signal: Tensor, open: Tensor) -> Tensor:
        ctx.save_for_backward(open)
        out: Tensor = torch.ops.aten.threshold_backward(signal, open, 0)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (open,) = ctx.saved_tensors
        return _Gate.apply(grads[0], open), None  # type: ignore[no-untyped-call]


_SUBSTITUTES: dict[Any, Any] = {
    F.binary_cross_entropy_with_logits: binary_cross_entropy_with_logits,
    F.cross_entropy: cross_entropy,
    F.batch_norm: batch_norm,
    F.instance_norm: instance_norm,
    F.layer_norm: layer_norm,
    F.linear: linear,
    F.relu: relu,
    torch.relu: relu,
    torch._weight_norm: weight_norm,
}


class _Substitutes(TorchFunctionMode):
    """While entered, some functions of torch are replaced by equal ones."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Called for every function of torch."""
        kwargs = kwargs or {}
        if inside_transform():  # torch.func needs the original functions
            return func(*args, **kwargs)
        if func in SPATIAL:
            return convolve(func, *args, **kwargs)
        return _SUBSTITUTES.get(func, func)(*args, **kwargs)


def check_graph(loss: Tensor, *, third: bool) -> list[Any]:
    """The functions of this loss whose weight gradients can be deferred.

    Raises SpiritlevelError if torch would differentiate it wrongly, for example the `third` time.
    """
    functions: list[Any] = []
    seen, stack = set(), [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        name = node.name()
        batch_norm = "BatchNormBackward" in name and getattr(node, "_saved_training", True)
        weight_norm = "WeightNormInterface" in name  # wrong the second time already
        if weight_norm or (third and (batch_norm or "LayerNormBackward" in name)):
            raise SpiritlevelError(
                "The loss must be differentiated several times, and torch does that wrongly for "
                f"normalizations. Got a loss that was computed with one ({name}). Compute it "
                "inside `with penalty.shared_forward():` or `with thrice_differentiable():`, which "
                "write them out, or use penalty(x, y), which does so itself."
            )
        if hasattr(node, "deferred"):
            functions.append(node)
        stack.extend(following for following, _ in node.next_functions)
    return functions
