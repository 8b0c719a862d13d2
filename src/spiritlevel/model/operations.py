"""The operations that parameters enter, read off the graph that autograd recorded.

Networks apply their weights in many ways: a subclass that pads by itself, `F.conv2d(x, self.w)`, a
slice of a packed matrix, `x @ w + b`. The graph shows all of them in the same few operations, with
what these saved: the input of a product, the numbers that a gain multiplies. So a parameter is
followed from its leaf through views (transposed, sliced, split, reshaped, cast) to the operations
that use it, whatever code called them. A parameter that enters anything else, or one of whose uses
is not known here, is left to the generic route.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from .autograd_graph import nodes
from .layers import AbstractRule
from .layers.broadcast import Broadcast, BroadcastRule
from .layers.embedding import BagRule, EmbeddingRule
from .layers.grouped import GroupedRule, LeftRule, TransposedGroupedRule, TransposedLeftRule
from .layers.patches import ConvRule, ConvTransposeRule, LinearRule, TransposedLinearRule
from .linearity import BATCH_NORMS, operation_of
from .node_results import learn_results, result_of
from .operands import VIEWS, Operand, follow, signed


@dataclasses.dataclass(frozen=True)
class Product:
    """A matrix product or a lookup: what the rules need to know of a layer."""

    weight: Tensor
    in_features: int = 0
    num_embeddings: int = 0
    padding_idx: int | None = None


@dataclasses.dataclass(frozen=True)
class Bags:
    """The same for lookups that are added up in bags."""

    weight: Tensor
    num_embeddings: int
    coefficients: Tensor  # of the tokens, shape: (bags, size)
    padding_idx: None = None


@dataclasses.dataclass(frozen=True)
class PaddedConvolution:
    """The same for a convolution; its input comes padded, or is padded with zeros."""

    weight: Tensor
    in_channels: int
    groups: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    output_padding: tuple[int, ...]
    padding_mode: str = "zeros"


LOOKUPS = ("Embedding", "EmbeddingBag")


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation that parameters enter."""

    edge: GradientEdge  # where the gradient of its result arrives
    shape: torch.Size  # of its result
    dtype: torch.dtype
    rule: AbstractRule
    geometry: Any
    input: Tensor  # with its graph
    operands: dict[str, Operand]  # under "weight" and "bias"


@dataclasses.dataclass(frozen=True)
class Operations:
    """The operations of a run, the parameters of which all were read, and those of which not."""

    found: list[Operation]
    explained: set[str]
    unexplained: set[str]
    tables: set[str]  # whole parameters whose rows are looked up, read or not


def find_operations(outputs: Tensor, wanted: Mapping[str, nn.Parameter]) -> Operations:
    """The operations that these parameters enter in the graph of the outputs."""
    learn_results(outputs)
    names = {id(parameter): name for name, parameter in wanted.items()}
    views: dict[Any, Callable[[int], Operand]] = {}  # by node, for each of its results
    operations: list[Operation] = []
    unexplained: set[str] = set()
    tables: set[str] = set()
    seen: set[str] = set()
    for node in nodes(outputs):
        variable = getattr(node, "variable", None)
        if variable is not None:
            if id(variable) in names:
                name = names[id(variable)]
                seen.add(name)
                operand = Operand.whole(name, wanted[name])
                views[node] = lambda _, operand=operand: operand  # type: ignore[misc]
            continue
        entering: dict[int, Operand] = {}
        try:
            for place, (following, number) in enumerate(node.next_functions):
                if following in views:
                    entering[place] = views[following](number)
        except (RuntimeError, IndexError):  # not a view after all: a reshape that copied
            unexplained.update(_names_behind(node, views))
            continue
        if not entering:
            continue
        operation = operation_of(node)
        if operation in VIEWS and len(node.next_functions) == 1:
            views[node] = follow(node, operation, entering[0])
            continue
        if operation in LOOKUPS and 0 in entering and entering[0].is_whole:
            tables.add(entering[0].name)
        read = _READERS.get(operation)
        found = read(node, entering) if read is not None else None
        if found is None:
            unexplained |= {operand.name for operand in entering.values()}
        else:
            operations.append(found)
    explained = seen - unexplained
    kept = []
    for each in operations:
        operands = {k: o for k, o in each.operands.items() if o.name in explained}
        if operands:
            kept.append(dataclasses.replace(each, operands=operands))
    return Operations(kept, explained, seen & unexplained, tables)


def _names_behind(node: Any, views: Mapping[Any, Callable[[int], Operand]]) -> set[str]:
    """The parameters whose views go into a node, also where the view itself cannot be formed."""
    names: set[str] = set()
    stack = [node]
    while stack:
        for following, _ in stack.pop().next_functions:
            variable = getattr(following, "variable", None)
            if variable is not None and following in views:
                names.add(views[following](0).name)
            elif following in views:
                stack.append(following)
    return names


def _found(
    node: Any, rule: AbstractRule, geometry: Any, a: Tensor, operands: dict[str, Operand]
) -> Operation:
    result = result_of(node)
    shape = torch.Size(result.shape)
    edge = GradientEdge(node, 0)
    return Operation(edge, shape, result.dtype, rule, geometry, a, operands)


def _matrix_product(
    node: Any, a: Tensor | None, weight: Operand | None, bias: Operand | None
) -> Operation | None:
    """Rows times a matrix of shape (in, out)."""
    if weight is None:
        return None if bias is None else _broadcast(node, None, {"bias": bias})
    width = result_of(node).shape[-1]
    if a is None or a.dim() != weight.view.dim():
        return None
    if a.dim() == 3 and len(a) > 1:
        return _grouped_product(node, a, weight, left=False) if bias is None else None
    matrix = weight.view if weight.view.dim() == 2 else weight.view[0]
    if bias is not None and bias.view.shape != (width,):
        return None
    rule: LinearRule = TransposedLinearRule()
    weight = weight.changed(matrix)
    turned = weight.changed(matrix.t())
    if turned.is_whole and (turned.is_as_kept or not weight.is_as_kept):
        rule, weight = LinearRule(), turned
    operands = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    geometry = Product(weight.values, in_features=a.shape[-1])
    return _found(node, rule, geometry, a, operands)


def _grouped_product(
    node: Any, a: Tensor | None, weight: Operand, *, left: bool
) -> Operation | None:
    """One matrix for each group, or the weight as the left factor."""
    if a is None or a.dim() != weight.view.dim():
        return None
    rows = weight.changed(weight.view if left else weight.view.mT)  # (…, out, in)
    columns = weight.changed(rows.view.mT)
    rule: GroupedRule
    if rows.is_whole:
        rule, weight = LeftRule() if left else GroupedRule(), rows
    elif columns.is_whole:
        rule, weight = TransposedLeftRule() if left else TransposedGroupedRule(), columns
    else:
        return None
    geometry = Product(weight.values, in_features=rows.view.shape[-1])
    return _found(node, rule, geometry, a, {"weight": weight})


def _addmm(node: Any, entering: dict[int, Operand]) -> Operation | None:
    if 1 in entering or node._saved_alpha != 1 or node._saved_beta != 1:
        return None
    return _matrix_product(node, node._saved_mat1, entering.get(2), entering.get(0))


def _mm(node: Any, entering: dict[int, Operand]) -> Operation | None:
    if len(entering) > 1:
        return None
    if 0 in entering:
        return _grouped_product(node, node._saved_mat2, entering[0], left=True)
    return _matrix_product(node, node._saved_self, entering[1], None)


def _convolution(node: Any, entering: dict[int, Operand]) -> Operation | None:
    if 0 in entering:
        return None
    weight, bias = entering.get(1), entering.get(2)
    spatial = len(node._saved_stride)
    if bias is not None and bias.view.dim() != 1:
        return None
    if weight is None:
        assert bias is not None
        along = bias.changed(bias.view.view(-1, *[1] * spatial))
        return _broadcast(node, None, {"bias": along})
    a = node._saved_input
    rule = ConvTransposeRule() if node._saved_transposed else ConvRule()
    geometry = PaddedConvolution(
        weight.values,
        in_channels=a.shape[1],
        groups=node._saved_groups,
        kernel_size=tuple(weight.view.shape[2:]),
        stride=tuple(node._saved_stride),
        padding=tuple(node._saved_padding),
        dilation=tuple(node._saved_dilation),
        output_padding=tuple(node._saved_output_padding),
    )
    operands = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    return _found(node, rule, geometry, a, operands)


def _embedding(node: Any, entering: dict[int, Operand]) -> Operation | None:
    if node._saved_scale_grad_by_freq:
        return None
    weight, padding = entering[0], signed(node._saved_padding_idx)
    geometry = Product(
        weight.values,
        num_embeddings=len(weight.view),
        padding_idx=padding if padding >= 0 else None,
    )
    return _found(node, EmbeddingRule(), geometry, node._saved_indices, {"weight": weight})


def _embedding_bag(node: Any, entering: dict[int, Operand]) -> Operation | None:
    """Bags that are summed or averaged, as a rectangle: shorter ones end in rows times 0."""
    by_frequency, maximum = node._saved_scale_grad_by_freq, node._saved_mode == 2
    tokens, num_bags = node._saved_indices, result_of(node).shape[0]
    if set(entering) != {0} or by_frequency or maximum or not len(tokens):
        return None
    weight, given = entering[0], node._saved_per_sample_weights
    starts = node._saved_offsets[:num_bags]
    # the last offset may be the end of the last bag, or be left out
    ends = torch.cat([node._saved_offsets[1:], starts.new_tensor([len(tokens)])])[:num_bags]
    sizes = ends - starts
    place = torch.arange(max(1, int(sizes.max())), device=tokens.device)
    inside = place < sizes[:, None]
    index = (starts[:, None] + place).clamp(max=len(tokens) - 1)
    a = tokens[index]
    padding = signed(node._saved_padding_idx)
    counted = inside & (a != padding) if padding >= 0 else inside
    coefficients = counted.to(weight.parameter.dtype)
    if given is not None:
        coefficients = coefficients * given.detach()[index]
    if node._saved_mode == 1:  # an empty bag is 0
        coefficients = coefficients / counted.sum(dim=1, keepdim=True).clamp(min=1)
    geometry = Bags(weight.values, len(weight.view), coefficients)
    return _found(node, BagRule(), geometry, a, {"weight": weight})


def _broadcast(node: Any, basis: Tensor | None, operands: dict[str, Operand]) -> Operation | None:
    """Gains and shifts; their last dimensions are those of the result."""
    num_dims = len(result_of(node).shape)
    if any(operand.view.dim() > num_dims for operand in operands.values()):
        return None
    dtype, device = result_of(node).dtype, next(iter(operands.values())).parameter.device
    if basis is None:
        basis = torch.ones((), dtype=dtype, device=device)
    geometry = Broadcast({key: operand.view.shape for key, operand in operands.items()})
    return _found(node, BroadcastRule(), geometry, basis, operands)


def _shift(node: Any, entering: dict[int, Operand]) -> Operation | None:
    if len(entering) > 1 or (1 in entering and getattr(node, "_saved_alpha", 1) != 1):
        return None
    return _broadcast(node, None, {"bias": next(iter(entering.values()))})


def _gain(node: Any, entering: dict[int, Operand]) -> Operation | None:
    if len(entering) > 1:
        return None
    basis = node._saved_other if 0 in entering else node._saved_self
    if basis is None:
        return None
    return _broadcast(node, basis, {"weight": next(iter(entering.values()))})


def _affine(
    node: Any, entering: dict[int, Operand], basis: Callable[[], Tensor], *, channel_first: bool
) -> Operation | None:
    """The gain and the shift of a normalization, whose result before them is `basis`."""
    if 0 in entering:
        return None
    operands = {key: entering[i] for i, key in ((1, "weight"), (2, "bias")) if i in entering}
    if channel_first:
        spatial = len(result_of(node).shape) - 2
        operands = {k: o.changed(o.view.view(-1, *[1] * spatial)) for k, o in operands.items()}
    return _broadcast(node, basis() if "weight" in operands else None, operands)


def _layer_norm(node: Any, entering: dict[int, Operand]) -> Operation | None:
    def basis() -> Tensor:
        return (node._saved_input - node._saved_result1) * node._saved_result2

    return _affine(node, entering, basis, channel_first=False)


def _rms_norm(node: Any, entering: dict[int, Operand]) -> Operation | None:
    def basis() -> Tensor:
        return node._saved_input * node._saved_result1

    return _affine(node, entering, basis, channel_first=False)


def _group_norm(node: Any, entering: dict[int, Operand]) -> Operation | None:
    def basis() -> Tensor:
        return F.group_norm(node._saved_input, node._saved_group, eps=node._saved_eps)

    return _affine(node, entering, basis, channel_first=True)


def _batch_norm(node: Any, entering: dict[int, Operand]) -> Operation | None:
    def basis() -> Tensor:
        mean, var = node._saved_running_mean, node._saved_running_var
        eps = getattr(node, "_saved_eps", None) or node._saved_epsilon
        return F.batch_norm(node._saved_input, mean, var, eps=eps)

    if getattr(node, "_saved_training", True):
        return None
    return _affine(node, entering, basis, channel_first=True)


def _prelu(node: Any, entering: dict[int, Operand]) -> Operation | None:
    if 0 in entering:
        return None
    return _broadcast(node, node._saved_self.clamp(max=0), {"weight": entering[1]})


_READERS: dict[str, Callable[[Any, dict[int, Operand]], Operation | None]] = {
    "Addmm": _addmm,
    "Mm": _mm,
    "Bmm": _mm,
    "Convolution": _convolution,
    "Embedding": _embedding,
    "EmbeddingBag": _embedding_bag,
    "Add": _shift,
    "Expand": _shift,
    "Mul": _gain,
    "NativeLayerNorm": _layer_norm,
    "FusedRmsNorm": _rms_norm,
    "NativeGroupNorm": _group_norm,
    "PreluKernel": _prelu,
    **dict.fromkeys(BATCH_NORMS, _batch_norm),
}
