"""Random rescalings of a ReLU network that keep its function (paper 003, sections 2 and 3)."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.symmetries.named_layers import rescale_layers, rescale_neurons

WEIGHTED = (nn.Conv2d, nn.Linear)
LAYERS, NEURONS = "layers", "neurons"
KINDS = (LAYERS, NEURONS)
CHANGE_ALLOWED = 1e-3  # of the largest output: far above rounding, far below another function


def rescaled(
    model: nn.Module, kind: str, *, low: float, high: float, generator: torch.Generator
) -> nn.Module:
    """A copy in which every layer but the last is multiplied, and the next one divided, at random.

    Args:
        model: layers in the order in which they are used, with ReLU and pooling alone between them.
        kind: "layers" draws one factor per layer, "neurons" one per unit.
        low: the smallest factor.
        high: the largest.
        generator: for the random factors.
    """
    paths = [path for path, module in model.named_modules() if isinstance(module, WEIGHTED)]
    changed = model
    for producer, consumer in itertools.pairwise(paths):
        layer = model.get_submodule(producer)
        count = 1 if kind == LAYERS else len(layer.weight)  # type: ignore[arg-type]
        drawn = torch.rand(count, generator=generator, dtype=torch.float64)
        factors = low + (high - low) * drawn
        if kind == LAYERS:
            changed = rescale_layers(changed, producer, consumer, float(factors))
        else:
            changed = rescale_neurons(changed, producer, consumer, factors)
    return changed


@torch.no_grad()
def output_change(model: nn.Module, other: nn.Module, x: Tensor) -> float:
    """The largest difference of an output, as a share of the largest output.

    Raises SpiritlevelError if rounding cannot explain it: then the function has changed.
    """
    before, after = model(x).double(), other(x).double()
    change = float((after - before).abs().max() / before.abs().max())
    if not change <= CHANGE_ALLOWED:
        raise SpiritlevelError(
            "The study's model must be a chain of linear and convolution layers with ReLU and "
            f"pooling alone between them, so that rescaling leaves its outputs. In this "
            f"{type(model).__name__} they change by {change:.2g} of the largest. Choose for "
            "example lenet5 or mlp."
        )
    return change
