"""Which layers a tensor directly comes from, read from autograd's graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

_SUMS = ("AddBackward", "SubBackward")
_PRODUCTS = ("MulBackward", "DivBackward", "MaximumBackward", "MinimumBackward", "WhereBackward")
_FUSED_ATTENTION = "ScaledDotProduct"
_SOFTMAX, _MATMUL = "SoftmaxBackward", "BmmBackward"


@dataclasses.dataclass(frozen=True)
class Reach:
    """For each call the layers it reads from; which layers meet in a sum or a product."""

    behind: list[frozenset[str]]
    behind_outputs: frozenset[str]
    attends: list[bool]  # is there attention between a call and the layers behind it?
    sums: set[frozenset[str]]
    products: set[frozenset[str]]


@dataclasses.dataclass(frozen=True)
class _View:
    layers: frozenset[str] = frozenset()
    operations: frozenset[str] = frozenset()


def reach_of(calls: list[list[Any]], outputs: list[Any], leaves: dict[int, str]) -> Reach:
    """Survey the graph behind each call's inputs and the outputs; leaves name a layer by id."""
    views_by_node: dict[Any, _View] = {None: _View()}
    sums: set[frozenset[str]] = set()
    products: set[frozenset[str]] = set()
    for root in (*(node for nodes in calls for node in nodes), *outputs):
        for node in _children_first(root, views_by_node):
            name = node.name()
            variable = getattr(node, "variable", None)
            if variable is not None:
                layer = leaves.get(id(variable))
                views_by_node[node] = _View(frozenset() if layer is None else frozenset({layer}))
                continue
            behind = [views_by_node[following] for following, _ in node.next_functions]
            views_by_node[node] = _merged(behind, name)
            if sum(bool(view.layers) for view in behind) > 1:
                if name.startswith(_SUMS):
                    sums.add(views_by_node[node].layers)
                elif name.startswith(_PRODUCTS):
                    products.add(views_by_node[node].layers)
    views = [_merged([views_by_node[node] for node in nodes], "") for nodes in calls]
    return Reach(
        [view.layers for view in views],
        frozenset().union(*(views_by_node[node].layers for node in outputs)),
        [_attends(view.operations) for view in views],
        sums,
        products,
    )


def _merged(views: Iterable[_View], name: str) -> _View:
    views = list(views)
    marks = {mark for mark in (_FUSED_ATTENTION, _SOFTMAX, _MATMUL) if mark in name}
    return _View(
        frozenset().union(*(view.layers for view in views)),
        frozenset(marks).union(*(view.operations for view in views)),
    )


def _attends(operations: frozenset[str]) -> bool:
    return _FUSED_ATTENTION in operations or {_SOFTMAX, _MATMUL} <= operations


def _children_first(root: Any, visited: dict[Any, _View]) -> Iterable[Any]:
    stack = [(root, False)]
    while stack:
        node, expanded = stack.pop()
        if node in visited:
            continue
        if expanded:
            yield node
        else:
            stack.append((node, True))
            stack.extend((following, False) for following, _ in node.next_functions)
