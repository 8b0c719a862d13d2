"""Running a network so that its loss can be differentiated three times.

torch's own batch_norm (in train mode), instance_norm and layer_norm have right first and second
derivatives, but their second derivative holds mean and variance fixed when it is differentiated
again: the third derivative is wrong. Nothing warns of that (seen in torch 2.13). And in float32 the
second derivatives of torch's own cross-entropies are 8 % off at a loss of 1e-7.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ...ground.errors import SpiritlevelError
from ...model.autograd_graph import inside_transform
from ...model.convolutions import SPATIAL
from ...model.losses import BinaryCrossEntropy, CrossEntropy
from ...model.model_state import twice_differentiable
from ...model.weight_norm import weight_norm
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


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """F.batch_norm, with the names of its arguments."""
    if not training:
        return F.batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    with torch.no_grad():  # updates the statistics, and refuses what torch refuses
        F.batch_norm(input, running_mean, running_var, None, None, True, momentum, eps)
    dims = [0, *range(2, input.dim())]
    return _by_channel(_standardized(input, dims, eps), weight, bias)


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """F.instance_norm, with the names of its arguments."""
    statistics = running_mean, running_var
    if not use_input_stats:
        return F.instance_norm(input, *statistics, weight, bias, False, momentum, eps)
    with torch.no_grad():
        F.instance_norm(input, *statistics, None, None, True, momentum, eps)
    return _by_channel(_standardized(input, list(range(2, input.dim())), eps), weight, bias)


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """F.layer_norm, with the names of its arguments."""
    output = _standardized(input, list(range(-len(normalized_shape), 0)), eps)
    output = output if weight is None else output * weight
    return output if bias is None else output + bias


def _standardized(x: Tensor, dims: list[int], eps: float) -> Tensor:
    centred = x - x.mean(dim=dims, keepdim=True)
    return centred * (centred.square().mean(dim=dims, keepdim=True) + eps).rsqrt()


def _by_channel(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    shape = [-1] + [1] * (x.dim() - 2)
    x = x if weight is None else x * weight.view(shape)
    return x if bias is None else x + bias.view(shape)


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """As F.cross_entropy, which gets what is unusual, and what it refuses."""
    wide, is_soft = _wide(input), target.is_floating_point()
    shape = input.shape if is_soft else input.shape[:1] + input.shape[2:]
    usual = input.dim() > 1 and target.shape == shape and not (is_soft and ignore_index >= 0)
    if wide is None or not usual or not _plain(size_average, reduce, reduction, weight):
        return F.cross_entropy(
            input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing
        )
    if not is_soft:  # raises what torch raises for labels that are no class
        F.nll_loss(wide.detach(), target, ignore_index=ignore_index, reduction="sum")
    loss = CrossEntropy(
        label_smoothing=label_smoothing,
        class_weights=weight,
        ignore_index=ignore_index,
        class_dim=1,
    )
    with torch.autocast(input.device.type, enabled=False):
        values = loss.position_values(wide, target)
        if reduction == "mean":
            return values.sum() / loss.weights(wide.detach(), target).sum().to(values.dtype)
    return values.sum() if reduction == "sum" else values.reshape(input.shape[:1] + input.shape[2:])


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """As F.binary_cross_entropy_with_logits, which gets what is unusual, and what it refuses."""
    wide, constant = _wide(input), not target.requires_grad and target.shape == input.shape
    if (
        wide is None
        or not constant
        or not _plain(size_average, reduce, reduction, weight, pos_weight)
    ):
        return F.binary_cross_entropy_with_logits(
            input, target, weight, size_average, reduce, reduction, pos_weight
        )
    with torch.autocast(input.device.type, enabled=False):
        loss = BinaryCrossEntropy(weight=weight, pos_weight=pos_weight)
        values = loss.element_values(wide, target.to(wide.dtype))
    return values if reduction == "none" else getattr(values, reduction)()


def _wide(input: Tensor) -> Tensor | None:
    """The outputs in float32 at least, where torch would compute in that too."""
    if input.dtype in (torch.float32, torch.float64):
        return input
    return input.float() if torch.is_autocast_enabled(input.device.type) else None


def _plain(size_average: Any, reduce: Any, reduction: Any, *constants: Tensor | None) -> bool:
    """Whether there is nothing outdated in the call, and nothing trained besides the outputs."""
    trained = any(each is not None and each.requires_grad for each in constants)
    known = reduction in ("mean", "sum", "none")
    return size_average is None and reduce is None and known and not trained


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
