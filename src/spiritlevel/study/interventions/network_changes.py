"""Networks changed on purpose: a shifted bias and dead feature maps, both of paper 001."""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from ...errors import SpiritlevelError, brief
from .checks import check_share, count_of, no_such_layer


def bias_shift(model: nn.Module, layer: str, amount: float) -> nn.Module:
    """A copy of the model in which `amount` is added to every bias of the layer.

    The paper shifts the first layer of VGG-small by -1 to 1: the further up, the more units fire.
    """
    shifted = copy.deepcopy(model)
    modules = dict(shifted.named_modules())
    if layer not in modules:
        raise no_such_layer(layer, list(modules), function="bias_shift", argument="layer")
    bias = getattr(modules[layer], "bias", None)
    if not isinstance(bias, Tensor):
        having = [p for p, m in modules.items() if isinstance(getattr(m, "bias", None), Tensor)]
        raise SpiritlevelError(
            f"The 'layer' argument of bias_shift must be a layer with a bias. Got {brief(layer)}, "
            f"a {type(modules[layer]).__name__} without one. With a bias: "
            f"{', '.join(having) or 'none in this model'}."
        )
    with torch.no_grad():
        bias.add_(amount)
    return shifted


class MaskedFeatures(nn.Module):
    """A layer of which some output maps are set to zero, in training and testing.

    `dead` is a buffer: it is saved and loaded with the weights. The layer inside is unchanged, so
    that its curvature is measured like any other's; the weights of dead maps have none.
    """

    dead: Tensor  # shape: (maps,), True where the map is zero

    def __init__(self, layer: nn.Module, dead: Tensor) -> None:
        super().__init__()
        self.layer = layer
        self.register_buffer("dead", dead)

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output with the dead maps at zero."""
        maps: Tensor = self.layer(x)
        # An image without a batch has its maps in front; a conv tells by its number of dimensions.
        after = maps.ndim - 1 - _maps_dim(self.layer, maps)
        return maps.masked_fill(self.dead.view(-1, *(1,) * after), 0.0)

    def extra_repr(self) -> str:
        """The number of dead maps, for print(model)."""
        return f"dead={int(self.dead.sum())} of {len(self.dead)} maps"


def mask_feature_maps(
    model: nn.Module,
    layers: str | Sequence[str] | None,
    ratio: float,
    generator: torch.Generator,
) -> nn.Module:
    """A copy of the model in which this share of the maps of each layer is always zero.

    Each named layer is wrapped in a MaskedFeatures; which of its maps are dead is drawn once.
    `layers` are names or patterns ("conv*"); None means every convolution. A norm layer after a
    masked convolution adds its bias to maps that are zero: if that is not wanted, name the norm
    layers instead.

    To load weights saved from a masked model: build the model, mask it with the same layers (any
    generator), load. The saved masks replace the drawn ones.
    """
    check_share(ratio, name="ratio", function="mask_feature_maps", below_one=True)
    masked = copy.deepcopy(model)
    chosen = _chosen(masked, layers)
    masks: dict[nn.Module, MaskedFeatures] = {}
    for path in chosen:
        parent_path, _, name = path.rpartition(".")
        parent = masked.get_submodule(parent_path)
        layer = parent.get_submodule(name)
        if isinstance(layer, MaskedFeatures):  # its parent stands in several places
            continue
        if layer not in masks:
            masks[layer] = MaskedFeatures(layer, _draw(layer, path, ratio, generator))
        if not path:  # the model is one layer, which nothing holds
            return masks[layer]
        parent._modules[name] = masks[layer]
    return masked


def _chosen(model: nn.Module, layers: str | Sequence[str] | None) -> list[str]:
    """Paths of the layers, also of those that stand in several places."""
    modules = dict(model.named_modules(remove_duplicate=False))
    inside = [path for path, module in modules.items() if isinstance(module, MaskedFeatures)]
    if inside:
        raise SpiritlevelError(
            "The 'model' argument of mask_feature_maps must not be masked already. Got one with "
            f"{inside[0]!r} masked. Mask the unmasked model, all layers at once."
        )
    able = [path for path, module in modules.items() if _num_maps(module)]
    if layers is None:
        paths = [path for path in able if isinstance(modules[path], _ConvNd)]
        if not paths:
            raise SpiritlevelError(
                "The 'model' argument of mask_feature_maps must have convolutions. Got "
                f"{type(model).__name__} without any. Name other layers: {', '.join(able)}."
            )
        return paths
    paths = []
    for pattern in [layers] if isinstance(layers, str) else layers:
        matching = [path for path in able if fnmatch.fnmatchcase(path, pattern)]
        if not matching and pattern in modules:
            raise SpiritlevelError(
                "The 'layers' argument of mask_feature_maps must name convolutions, linear or norm "
                f"layers. Got {brief(pattern)}, a {type(modules[pattern]).__name__}. "
                f"There are: {', '.join(able)}."
            )
        if not matching:
            raise no_such_layer(pattern, able, function="mask_feature_maps", argument="layers")
        paths += matching
    return list(dict.fromkeys(paths))


def _num_maps(layer: nn.Module) -> int:
    if isinstance(layer, _ConvNd):
        return layer.out_channels
    if isinstance(layer, nn.Linear):
        return layer.out_features
    return layer.num_features if isinstance(layer, _NormBase) else 0


def _maps_dim(layer: nn.Module, maps: Tensor) -> int:
    if isinstance(layer, _ConvNd):
        return maps.ndim - 1 - len(layer.kernel_size)
    return maps.ndim - 1 if isinstance(layer, nn.Linear) else 1


def _draw(layer: nn.Module, path: str, ratio: float, generator: torch.Generator) -> Tensor:
    maps = _num_maps(layer)
    count = count_of(ratio, maps)
    if count == maps:
        raise SpiritlevelError(
            f"The 'ratio' argument of mask_feature_maps must leave a map alive in every layer. "
            f"Got {brief(ratio)}, which kills all {maps} of {path!r}. Choose a smaller one, or "
            "fewer layers."
        )
    dead = torch.zeros(maps, dtype=torch.bool)
    order = torch.randperm(maps, generator=generator, device=generator.device)
    dead[order[:count].cpu()] = True
    device = next((p.device for p in layer.parameters()), torch.device("cpu"))
    return dead.to(device)
