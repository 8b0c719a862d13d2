"""Other tensors in the place of a model's parameters and buffers, for the time of a block.

`torch.func.functional_call` goes by names. A module that is registered under two names is then
replaced twice and restored once, which leaves a plain tensor where a Parameter was. Here every
module is visited once, and a tensor is recognized by identity, wherever it is registered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn


@contextlib.contextmanager
def substituted(model: nn.Module, values: Mapping[Tensor, Tensor]) -> Iterator[None]:
    """Let the model compute with `values` in place of the tensors they belong to."""
    replaced: list[tuple[dict[str, Any], str, Tensor]] = []
    by_identity = {id(tensor): value for tensor, value in values.items()}
    modules = list(model.modules())
    # recurrent layers notice other weights and list them anew
    listed = [
        (module, module._flat_weights, module._flat_weight_refs)
        for module in modules
        if isinstance(module, nn.RNNBase)
    ]
    try:
        for module in modules:
            # not by setattr, which refuses what is not a Parameter
            tables: list[dict[str, Any]] = [module._parameters, module._buffers]
            for registered in tables:
                for name, tensor in registered.items():
                    if id(tensor) in by_identity:
                        replaced.append((registered, name, tensor))
                        registered[name] = by_identity[id(tensor)]
        yield
    finally:
        for registered, name, tensor in replaced:
            registered[name] = tensor
        for recurrent, weights, references in listed:
            recurrent._flat_weights = weights
            recurrent._flat_weight_refs = references
