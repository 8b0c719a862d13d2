"""The shape and type of what a node of autograd's graph computed.

Torch 2.5 and newer say so of every node. Before, only a backward shows it, by the gradients that
reach the node: so there a backward of zeros runs through the graph first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .autograd_graph import nodes

_TOLD_BY_TORCH = torch.__version__ >= torch.torch_version.TorchVersion("2.5")
_KEY = "spiritlevel results"  # in the metadata of a node


class Result(NamedTuple):
    """What is known of a tensor that is gone."""

    shape: torch.Size
    dtype: torch.dtype


def learn_results(outputs: Tensor) -> None:
    """Find out the results of all nodes behind the outputs, where torch does not say them."""
    if _TOLD_BY_TORCH:
        return
    handles, leaves = [], []
    for node in nodes(outputs):
        variable = getattr(node, "variable", None)
        if variable is None:
            handles.append(node.register_prehook(_noting(node)))
        else:
            leaves.append(variable)
    try:
        zeros = torch.zeros_like(outputs)
        torch.autograd.grad(outputs, leaves, zeros, retain_graph=True, allow_unused=True)
    finally:
        for handle in handles:
            handle.remove()


def _noting(node: Any) -> Any:
    def note(gradients: Sequence[Tensor | None]) -> None:
        node.metadata[_KEY] = [
            None if gradient is None else Result(gradient.shape, gradient.dtype)
            for gradient in gradients
        ]

    return note


def result_of(node: Any, number: int = 0) -> Any:
    """One of a node's results: it has `shape` and `dtype`. RuntimeError if nothing is known."""
    if _TOLD_BY_TORCH:
        return node._input_metadata[number]
    if (variable := getattr(node, "variable", None)) is not None:
        return Result(variable.shape, variable.dtype)
    found = node.metadata.get(_KEY, ())
    if number >= len(found) or found[number] is None:
        raise RuntimeError(f"what {node.name()} computed is not known")
    return found[number]
