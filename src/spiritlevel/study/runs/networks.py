"""The network of a run before training: built, initialized or loaded, and changed on purpose."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ...errors import SpiritlevelError
from ...training.norm_control.control import NORMS, constrain_weights_, replace_norms
from ..interventions import bias_shift, mask_feature_maps
from ..models import build
from ..settings.run import RunSettings
from .run_data import DTYPES, derived_generator
from .transfer import head_path, load_start

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
Draw = Callable[[Tensor, torch.Generator], object]
SCHEMES: dict[str, Draw] = {  # the four of paper 003, section 4
    "xavier_normal": lambda w, g: nn.init.xavier_normal_(w, generator=g),
    "kaiming_uniform": lambda w, g: nn.init.kaiming_uniform_(w, generator=g),
    "uniform": lambda w, g: nn.init.uniform_(w, -0.1, 0.1, generator=g),
    "normal": lambda w, g: nn.init.normal_(w, 0.0, math.sqrt(0.1), generator=g),
}


def build_model(settings: RunSettings, device: str | torch.device) -> nn.Module:
    """The untrained network; its weights depend on the seed, and on the file it starts from."""
    model = build(settings.model.name, seed=settings.seed, **settings.model.arguments)
    is_shape_only = torch.device(device).type == "meta"
    if settings.training.norm_control and any(isinstance(m, NORMS) for m in model.modules()):
        replace_norms(model)
    if not is_shape_only:
        _set_weights(model, settings)
    model = _changed(model, settings)
    if settings.training.norm_control and not is_shape_only:
        constrain_weights_(model)
    return model.to(device, DTYPES[settings.training.dtype])


def first_layer(model: nn.Module) -> str:
    """The first linear or convolution layer."""
    for path, module in model.named_modules():
        if isinstance(module, (nn.Linear, *CONVOLUTIONS)):
            return path
    raise SpiritlevelError(
        "The study's interventions.bias_shift needs a linear or convolution layer, and "
        f"{type(model).__name__} has none. Name the layer with bias_layer."
    )


@torch.no_grad()
def _set_weights(model: nn.Module, settings: RunSettings) -> None:
    if scheme := settings.model.init:
        generator = derived_generator(settings.seed, "initialization")
        for _, param in model.named_parameters():
            if param.dim() > 1:  # biases and the scales of norm layers keep their own start
                SCHEMES[scheme](param, generator)
    if start := settings.model.init_from:
        load_start(
            model,
            start,
            seed=settings.seed,
            fresh_head=settings.model.init_head == "fresh",
            head=settings.measure_options.head,
        )


def _changed(model: nn.Module, settings: RunSettings) -> nn.Module:
    given = settings.interventions
    if amount := given.bias_shift:
        model = bias_shift(model, given.bias_layer or first_layer(model), amount)
    if ratio := given.mask:
        layers = given.mask_layers or _inner_convolutions(model, settings.measure_options.head)
        generator = derived_generator(settings.seed, "masks")
        model = mask_feature_maps(model, layers, ratio, generator)
    return model


def _inner_convolutions(model: nn.Module, head: str | None) -> list[str] | None:
    """All but the head, whose maps are the classes; None if there are none to mask."""
    own = head_path(model, head)
    found = [path for path, module in model.named_modules() if isinstance(module, CONVOLUTIONS)]
    return [path for path in found if path != own] or None
