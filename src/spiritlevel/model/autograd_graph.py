"""Reading the graph that autograd recorded: which parameters it reads, and through what."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import GradientEdge

from ..ground.errors import SpiritlevelError


def inside_transform() -> bool:
    """Whether torch.func, or forward differentiation, is at work around this line.

    Tensors then stand for others (all samples of a vmap, a value with its tangent), and they are
    dead as soon as it ends.
    """
    return torch._C._functorch.peek_interpreter_stack() is not None or (
        forward_ad._current_level >= 0
    )


def nodes(*outputs: Tensor | GradientEdge) -> Iterator[Any]:
    """Every node behind the outputs once, each after all the nodes that feed it."""
    done: set[Any] = set()
    stack: list[tuple[Any, bool]] = [
        (each.node if isinstance(each, GradientEdge) else each.grad_fn, False) for each in outputs
    ]
    while stack:
        node, expanded = stack.pop()
        if node is None or node in done:
            continue
        if expanded:
            done.add(node)
            yield node
            continue
        stack.append((node, True))
        stack.extend((following, False) for following, _ in node.next_functions)


def parameter_uses(outputs: Tensor) -> dict[int, int]:
    """How often the graph of `outputs` reads each leaf, by id of the leaf."""
    counts: dict[int, int] = {}
    for node in nodes(outputs):
        for following, _ in node.next_functions:
            variable = getattr(following, "variable", None)
            if variable is not None:
                counts[id(variable)] = counts.get(id(variable), 0) + 1
    return counts


def shape_of_graph(outputs: Tensor, names: Mapping[int, str]) -> int:
    """A number that is the same for the same operations on the same parameters in the same order.

    `names` are those of the parameters by id. Sizes and values do not enter, so that batches of all
    sizes agree.
    """
    numbers: dict[Any, int] = {}
    parts = []
    for node in nodes(outputs):
        numbers[node] = len(numbers)
        inputs = tuple(numbers.get(following, -1) for following, _ in node.next_functions)
        name = names.get(id(getattr(node, "variable", None)))
        parts.append((node.name(), inputs, name))
    return hash(tuple(parts))


def refuse_hidden_graphs(outputs: Tensor) -> None:
    """Raise SpiritlevelError where a part of the graph cannot be seen from outside."""
    if any(node.name() == "CheckpointFunctionBackward" for node in nodes(outputs)):
        raise SpiritlevelError(
            "The model uses reentrant checkpointing, which hides its parameters from "
            "torch.autograd.grad: they would count as unused. Pass use_reentrant=False to "
            "torch.utils.checkpoint, or switch checkpointing off while you measure "
            "(model.gradient_checkpointing_disable() in Hugging Face)."
        )


def lacks_second_derivative(gradients: Iterable[Tensor | None]) -> bool:
    """Whether a function in the graph is marked as differentiable only once.

    Its gradient then ends in a node that raises. A backward towards the parameters bypasses that
    node, and the missing part would count as zero.
    """
    roots = [g for g in gradients if g is not None and g.grad_fn is not None]
    return any(node.name() == "torch::autograd::Error" for node in nodes(*roots))


def deepest(outputs: Tensor | GradientEdge, edges: list[GradientEdge]) -> list[GradientEdge]:
    """The edges with no other edge behind them: a backward to these passes through all others."""
    targets = {edge.node for edge in edges}
    reaches: dict[Any, bool] = {}  # is there a target strictly behind this node?
    for node in nodes(outputs):
        behind = [following for following, _ in node.next_functions if following is not None]
        reaches[node] = any(other in targets or reaches[other] for other in behind)
    return [edge for edge in edges if edge.node in reaches and not reaches[edge.node]]
