"""The activations that a model can be built with."""

from __future__ import annotations

from torch import nn

from ...errors import SpiritlevelError

_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}


def activation_type(model: str, activation: str) -> type[nn.Module]:
    """The module that does it; none of them works in place."""
    if activation not in _ACTIVATIONS:
        known = ", ".join(map(repr, _ACTIVATIONS))
        raise SpiritlevelError(
            f"The 'activation' argument of {model} must be one of {known}. Got {activation!r}. "
            "Another activation needs a network of your own, given as 'module:factory'."
        )
    return _ACTIVATIONS[activation]
