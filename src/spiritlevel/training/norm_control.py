"""Norm control of paper 001, section 5.1. These change training.

Weights and activations of fixed size make curvature comparable between networks and along training:
every sample's activations have mean 0 and variance 1, every weight matrix mean 0 and variance
2/n_in, hence ‖W‖² = 2·n_out.

    replace_norms(model)                              # before the optimizer is made
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    WeightConstraint(model).attach(optimizer)         # now, and after each step
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils.parametrize import is_parametrized
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from ..ground.errors import SpiritlevelError

NORMS: tuple[type[nn.Module], ...] = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_HALF = (torch.float16, torch.bfloat16)
_ROUND_OFF = 16  # units of round-off: a smaller spread is only the error of the mean
_LAYERS = (nn.Linear, nn.Bilinear, _ConvNd, nn.MultiheadAttention, nn.RNNBase)


class MeanVarianceNorm(nn.Module):
    """Shifts and scales all activations of each sample together, to mean 0 and variance 1.

    No learned parameters, no statistics of the batch, and no ε: the variance is 1 to round-off. A
    sample that is constant to round-off gives zeros, and gets a gradient of 0. `batch_dim` says
    which dimension counts the samples: 1 for sequence-first tensors.

    >>> MeanVarianceNorm()(torch.tensor([[1.0, 3.0], [5.0, 5.0]]))
    tensor([[-1.,  1.],
            [ 0.,  0.]])
    """

    def __init__(self, *, batch_dim: int = 0) -> None:
        super().__init__()
        self.batch_dim = batch_dim

    def forward(self, x: Tensor) -> Tensor:
        """Normalize; half precision is computed in float32 and given back in its own type."""
        if x.ndim < 2:
            raise SpiritlevelError(
                "The input of MeanVarianceNorm must have a dimension for samples and at least one "
                f"for activations. Got shape {tuple(x.shape)}. Add one: x.unsqueeze(0)."
            )
        wide = x.float() if x.dtype in _HALF else x
        sample_dims = [dim for dim in range(x.ndim) if dim != self.batch_dim % x.ndim]
        variance, mean = torch.var_mean(wide, dim=sample_dims, correction=0, keepdim=True)
        constant = _is_constant(variance, mean)
        # Chosen twice, so that no gradient of 1/√0 comes near the result.
        scale = torch.where(constant, 0.0, torch.where(constant, 1.0, variance).rsqrt())
        return ((wide - mean) * scale).to(x.dtype)

    def extra_repr(self) -> str:
        """The arguments that print(model) shows."""
        return f"batch_dim={self.batch_dim}"


def replace_norms(
    model: nn.Module, kinds: tuple[type[nn.Module], ...] = NORMS, *, batch_dim: int = 0
) -> list[str]:
    """Replace every norm layer of `model`, in place, by a MeanVarianceNorm; returns their paths.

    The default `kinds` are BatchNorm, SyncBatchNorm, InstanceNorm, LayerNorm, GroupNorm and
    RMSNorm. A layer used in several places is replaced by one layer in all of them. Learned scales,
    shifts and statistics are lost: train afterwards, with an optimizer made afterwards.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU())
    >>> replace_norms(model)
    ['1']
    """
    names = ", ".join(kind.__name__.lstrip("_") for kind in kinds)
    if isinstance(model, kinds):
        raise SpiritlevelError(
            "The 'model' argument of replace_norms must contain norm layers, and is one itself "
            f"({type(model).__name__}), so there is no parent in which to replace it. Use "
            "MeanVarianceNorm() instead."
        )
    paths = [
        path
        for path, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, kinds)
    ]
    if not paths:
        raise SpiritlevelError(
            f"The 'model' argument of replace_norms must contain a layer of these kinds: {names}. "
            f"Got {type(model).__name__} without any. Name others with kinds=(...), or add "
            "MeanVarianceNorm() layers to the model."
        )
    if batch_dim == 0:
        _refuse_sequence_first(model)
    replacements: dict[nn.Module, MeanVarianceNorm] = {}
    for path in paths:
        parent_path, _, name = path.rpartition(".")
        parent = model.get_submodule(parent_path)
        old = parent._modules[name]
        if isinstance(old, MeanVarianceNorm):  # its parent is used in several places
            continue
        assert old is not None
        if old not in replacements:
            replacements[old] = MeanVarianceNorm(batch_dim=batch_dim).train(old.training)
        parent._modules[name] = replacements[old]
    _leave_fast_paths(model, set(replacements.values()))
    return paths


@torch.no_grad()
def constrain_weights_(model: nn.Module) -> list[str]:
    """Give every weight matrix and kernel mean 0 and variance 2/n_in, in place; returns the names.

    These are the weights of linear, bilinear, convolution, attention and recurrent layers, also
    frozen ones. Biases, embeddings and the scales of norm layers stay. If one weight cannot be
    constrained, none is changed.

    >>> layer = nn.Linear(2, 2)
    >>> layer.weight.data = torch.tensor([[1.0, 2.0], [4.0, 5.0]])
    >>> constrain_weights_(layer)
    ['weight']
    >>> round(layer.weight.square().sum().item(), 5)               # 2·n_out
    4.0
    """
    matrices = weight_matrices(model)
    wide = [m.weight.float() if m.weight.dtype in _HALF else m.weight for m in matrices]
    moments = [torch.var_mean(weight, correction=0) for weight in wide]
    bad = [_is_constant(v, mean) | ~torch.isfinite(v) for v, mean in moments]
    if len({x.device for x in bad}) > 1:  # parts of a network on several GPUs
        bad = [x.cpu() for x in bad]
    # One look for all: each would wait for the GPU.
    for matrix, is_bad in zip(matrices, torch.stack(bad).tolist(), strict=True):
        if is_bad:
            raise SpiritlevelError(
                f"The weight {matrix.name!r} of shape {tuple(matrix.weight.shape)} cannot have "
                "variance 2/n_in: its entries are all the same or not finite. Initialize it "
                "randomly (torch.nn.init.kaiming_normal_), or lower the learning rate if training "
                "diverged. No weight was changed."
            )
    for matrix, weight, (variance, mean) in zip(matrices, wide, moments, strict=True):
        scale = (2 / matrix.num_in / variance).sqrt()
        matrix.weight.copy_((weight - mean) * scale)
    return [matrix.name for matrix in matrices]


class WeightConstraint:
    """Applies constrain_weights_ to one model, when called or after each step of an optimizer.

    The optimizer's state, such as momentum, is not adjusted.
    """

    def __init__(self, model: nn.Module) -> None:
        weight_matrices(model)  # refuses a model without any
        self.model = model

    def __call__(self, *_: Any) -> None:
        """Constrain the weights now; the arguments that an optimizer passes are ignored."""
        constrain_weights_(self.model)

    def attach(self, optimizer: Optimizer) -> RemovableHandle:
        """Constrain the weights now and after each step; `.remove()` on the result ends that."""
        self()
        return optimizer.register_step_post_hook(self)


def _is_constant(variance: Tensor, mean: Tensor) -> Tensor:
    """Whether a spread is no more than the round-off of the numbers themselves."""
    share = _ROUND_OFF * torch.finfo(variance.dtype).eps
    return variance <= share**2 * mean.square()


def _refuse_sequence_first(model: nn.Module) -> None:
    for path, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention) and not module.batch_first:
            raise SpiritlevelError(
                f"The attention layer {path!r} takes sequence-first tensors (batch_first=False), "
                "where dimension 0 does not count samples. Pass batch_dim=1 to replace_norms, or "
                "build the model with batch_first=True."
            )


def _leave_fast_paths(model: nn.Module, norms: set[MeanVarianceNorm]) -> None:
    """Keep torch's fused encoder, which reads the scales of LayerNorms, from running in eval."""
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer) and not norms.isdisjoint(
            module.children()
        ):
            module.activation_relu_or_gelu = 0  # torch's own flag for "not the fused one"
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False


@dataclasses.dataclass(frozen=True)
class ControlledMatrix:
    """A weight, or a part of one that is used as a separate matrix."""

    name: str
    weight: Tensor  # shares memory with the parameter
    num_in: int


def weight_matrices(model: nn.Module) -> list[ControlledMatrix]:
    """The weights of linear, bilinear, convolution, attention and recurrent layers, each once.

    >>> for matrix in weight_matrices(nn.Sequential(nn.Conv2d(4, 6, 3, groups=2), nn.Linear(5, 2))):
    ...     print(matrix.name, matrix.num_in)
    0.weight 18
    1.weight 5
    """
    matrices: dict[tuple[int, int], ControlledMatrix] = {}
    for path, module in model.named_modules():
        if isinstance(module, _LAYERS):
            if is_parametrized(module) or hasattr(module, "weight_g"):  # and the older weight_norm
                raise SpiritlevelError(
                    f"The layer {path or '(model)'!r} computes its weight from others (weight_norm "
                    "or another parametrization), so the weight cannot be set. Call "
                    "remove_parametrizations or remove_weight_norm on it first."
                )
            for name, weight, num_in in _of_layer(module):
                matrix = ControlledMatrix(f"{path}.{name}" if path else name, weight, num_in)
                matrices.setdefault((weight.data_ptr(), weight.numel()), matrix)
    if not matrices:
        raise SpiritlevelError(
            "The 'model' argument must contain a linear, bilinear, convolution, attention or "
            f"recurrent layer. Got {type(model).__name__} without any: it has no weight to control."
        )
    return list(matrices.values())


def _of_layer(module: nn.Module) -> Iterator[tuple[str, Tensor, int]]:
    """Name, matrix and fan-in: the number of inputs that one output sums over."""
    if isinstance(module, (nn.MultiheadAttention, nn.RNNBase)):
        for name, weight in module._parameters.items():
            if weight is None or weight.ndim != 2:
                continue
            if name == "in_proj_weight":  # queries, keys and values, one above the other
                for kind, part in zip("qkv", weight.detach().chunk(3), strict=True):
                    yield f"{name}[{kind}]", part, part.shape[1]
            else:
                yield name, weight.detach(), weight.shape[1]
        return
    weight = module._parameters["weight"]
    assert weight is not None
    num_out = weight.shape[0]
    if isinstance(module, _ConvTransposeNd):  # stored the other way round
        num_out = weight.shape[1] * module.groups
    yield "weight", weight.detach(), weight.numel() // num_out
