"""The activations that a model can be built with."""

from __future__ import annotations

from torch import nn

from ...ground.errors import SpiritlevelError, brief

_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}


def activation_type(model: str, activation: str) -> type[nn.Module]:
    """The module class of an activation; none of them works in place."""
    if activation not in _ACTIVATIONS:
        names = ", ".join(map(repr, _ACTIVATIONS))
        raise SpiritlevelError(
            f"The 'activation' argument of {model} must be one of {names}. Got "
            f"{brief(activation)}. For another activation, write a network of your own and give it "
            "as 'module:factory'."
        )
    return _ACTIVATIONS[activation]
