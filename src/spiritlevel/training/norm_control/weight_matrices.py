"""The weight matrices and kernels of a model, each with the number of inputs that it sums over."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils.parametrize import is_parametrized

from ...errors import SpiritlevelError

_LAYERS = (nn.Linear, nn.Bilinear, _ConvNd, nn.MultiheadAttention, nn.RNNBase)


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
