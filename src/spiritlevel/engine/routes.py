"""How the per-sample gradients of each parameter are computed in one run of the model.

What a network does may depend on its data: experts that some samples use, layers called more or
less often, rows sorted by length. So nothing that was seen on the first samples is taken for
granted. Every run is held against its own graph: how often is each parameter read, and were all
these uses recorded? And each recorded use must have its samples where they are believed to be,
which is tested on all samples of the run: a cotangent is scaled by another factor for every sample,
and the gradient at a layer must be scaled row by row in the same way.
What cannot be explained takes the generic route, one sample at a time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from ..model.autograd_graph import deepest, nodes, parameter_uses, refuse_hidden_graphs
from ..model.layer_hooks import LayerUse
from ..model.layers import Layout, possible_layouts
from ..model.linearity import SLICE_WRITTEN, operation_of
from ..model.surface import Surface
from .uses import calls_by_parameter, pull

# single: one use, contracted as it arrives; sum: several uses, G is formed and added up first;
# generic: per-sample gradients by vmap or one by one; unused: the outputs do not depend on it
Route = Literal["single", "sum", "generic", "unused"]

# Operations that move rows to places that depend on values. The rest does the same to all data.
# '' is a function that torch did not write.
_ROW_MOVERS = frozenset(
    [
        "",
        *("Index", "IndexSelect", "IndexAdd", "IndexCopy", "IndexPut", "IndexPutImpl"),
        *("UnsafeIndex", "UnsafeIndexPut", "Gather", "Scatter", "ScatterAdd", "ScatterReduce"),
        *("Take", "Put", "MaskedSelect", "MaskedScatter", "Sort", "Topk", "IndexReduce"),
    ]
)

# Operations that move rows to places that are given to them as numbers, which a model may have
# taken from its data: these numbers belong to what a run did.
_PLACED = frozenset(
    [
        *("Roll", "Flip", "Cat", "Stack", "Slice", "Select", "Split", "SplitWithSizes", "Unbind"),
        *("AsStrided", "Repeat", "Unfold", "SliceScatter", "SelectScatter", "ConstantPadNd"),
    ]
)
ROWS_PLACED = "rows placed"
_PLACES = (
    *("dim", "dims", "start", "step", "shifts", "index", "split_size", "split_sizes"),
    *("storage_offset", "stride", "pad", "repeats"),
)


# Attention in one operation, and what takes its place where it is to be differentiated twice. Both
# leave the samples where they are.
_ATTENTION = frozenset(
    f"ScaledDotProduct{kind}"
    for kind in (
        *("FlashAttention", "FlashAttentionForCpu", "EfficientAttention", "CudnnAttention"),
        "FusedAttentionOverrideable",
    )
)
_WRITTEN_OUT = frozenset(
    ["Bmm", "Clone", "Expand", "UnsafeView", "ReshapeAlias", "Mul", "Add", "Softmax", "SafeSoftmax"]
)


@dataclasses.dataclass(frozen=True)
class Signature:
    """What a run did: which operations it used, and which layers it called in which order."""

    operations: frozenset[str]
    layers: tuple[str, ...]

    @property
    def same_for_all_data(self) -> bool:
        """Whether the samples are in the same places of the layers' tensors, whatever the data."""
        return not self.operations & (_ROW_MOVERS | {ROWS_PLACED})

    def does_as(self, other: Signature) -> bool:
        """Whether a run did the same, but for how attention is written."""
        if self.layers != other.layers:
            return False
        more, fewer = self.operations - other.operations, other.operations - self.operations
        if not more and not fewer:
            return True
        return bool(fewer) and fewer <= _ATTENTION and more <= _WRITTEN_OUT


@dataclasses.dataclass(frozen=True)
class Routing:
    """The routes of one run of the model, and the layout of each recorded use."""

    routes: dict[str, Route]
    layouts: list[Layout | None]  # of each use; None if its samples cannot be told apart
    signature: Signature
    certain: bool  # whether the layouts are the only possible ones


def hidden_parameters(uses: Sequence[LayerUse], routing: Routing) -> set[str]:
    """Parameters of layers that ran without a graph, of which autograd sees no other use."""
    return {
        name
        for use in uses
        if use.hidden
        for name in use.names.values()
        if routing.routes[name] == "unused"
    }


def find_routing(
    surface: Surface,
    uses: Sequence[LayerUse],
    outputs: Tensor,
    *,
    expected: Mapping[str, Layout] | None = None,
    trusted: Signature | None = None,
    seed: int = 0,
) -> Routing:
    """The routes of a run that gave `outputs`; `uses` are those of its parameters, with names.

    `expected` are the layouts of an earlier run. They are not tested again if this run did the same
    as `trusted`.
    """
    refuse_hidden_graphs(outputs)
    operations = operations_of(outputs)
    signature = Signature(operations, tuple(use.layer for use in uses))
    expected = expected or {}
    candidates = [_candidates(use, len(outputs), expected) for use in uses]
    is_same = trusted is not None and signature.does_as(trusted) and signature.same_for_all_data
    certain = True
    layouts: list[Layout | None]
    if is_same and all(
        layouts and use.layer in expected and layouts[0].same_place(expected[use.layer])
        for use, layouts in zip(uses, candidates, strict=True)
    ):
        layouts = [fitting[0] for fitting in candidates]
    elif len(outputs) == 1:  # all layouts of one sample are the same
        layouts = [fitting[0] if fitting else None for fitting in candidates]
    else:
        passing = _tested(surface, uses, candidates, outputs, seed)
        layouts = [fitting[0] if fitting else None for fitting in passing]
        certain = all(len(fitting) <= 1 for fitting in passing)
    return Routing(_routes(surface, uses, layouts, outputs), layouts, signature, certain)


def operations_of(outputs: Tensor) -> frozenset[str]:
    """The operations in the graph of `outputs`, but for plain views, which we add ourselves."""
    operations = set()
    for node in nodes(outputs):
        if hasattr(node, "variable"):
            continue
        operation = SLICE_WRITTEN if node.name() == SLICE_WRITTEN else operation_of(node)
        if operation in _PLACED:
            places = {place: getattr(node, f"_saved_{place}", None) for place in _PLACES}
            if places["dim"] == 0 or 0 in (places["dims"] or ()):
                operation = ROWS_PLACED  # most likely the samples': never the same for all data
            else:
                operation = " ".join([operation, *map(str, places.values())])
        operations.add(operation)
    return frozenset(operations - {"View", "Alias"})


def _candidates(use: LayerUse, num_samples: int, expected: Mapping[str, Layout]) -> list[Layout]:
    """Layouts that the shape of a use allows, the expected one first."""
    shape = use.output.shape
    assert use.rule is not None
    layouts = possible_layouts(
        shape,
        num_samples,
        leading=use.rule.leading(use.module, shape),
        first=use.rule.first_leading(use.module, shape),
    )
    before = expected.get(use.layer)
    return sorted(layouts, key=lambda layout: before is None or not layout.same_place(before))


def _tested(
    surface: Surface,
    uses: Sequence[LayerUse],
    candidates: list[list[Layout]],
    outputs: Tensor,
    seed: int,
) -> list[list[Layout]]:
    """The candidates in which every sample's rows follow the scale of that sample's cotangent."""
    edges = [use.edge for use in uses if use.edge is not None]
    if not edges:
        return candidates
    noise = cotangent_like(outputs, seed)
    scales = sample_scales(outputs, seed)
    deep = deepest(outputs, edges)
    before = _row_sizes(surface, uses, candidates, outputs, noise, deep)
    after = _row_sizes(surface, uses, candidates, outputs, scaled(noise, scales), deep)

    def follows(use: int, layout: Layout) -> bool:
        place = use, layout.dim
        if place not in before:
            return True  # no gradient arrives here: there is nothing to attribute
        return rows_follow(before[place], after[place], layout, scales, outputs.dtype)

    return [
        [layout for layout in fitting if follows(use, layout)]
        for use, fitting in enumerate(candidates)
    ]


def cotangent_like(outputs: Tensor, seed: int) -> Tensor:
    """Normal numbers in the shape of the outputs, drawn where these are: they may be millions."""
    generator = torch.Generator(outputs.device).manual_seed(seed)
    options = {"generator": generator, "dtype": outputs.dtype, "device": outputs.device}
    return torch.randn(outputs.shape, **options)  # type: ignore[call-overload]


def sample_scales(outputs: Tensor, seed: int) -> Tensor:
    """Very different factors of the samples, none twice as far as there are enough of them.

    Powers of two do not round, and eighths between them hardly.
    """
    choices = torch.arange(60 * 8)
    generator = torch.Generator().manual_seed(seed)
    numbers = choices[torch.randperm(len(choices), generator=generator)]
    repeats = -(-len(outputs) // len(numbers))
    numbers = numbers.repeat(repeats)[: len(outputs)].double()
    numbers = numbers.to(outputs.device)
    return (1 + (numbers % 8) / 8) * 2.0 ** (torch.floor(numbers / 8) - 30)


def scaled(cotangent: Tensor, scales: Tensor) -> Tensor:
    """Every sample's cotangent times its scale."""
    return cotangent * scales.reshape(-1, *[1] * (cotangent.dim() - 1)).to(cotangent.dtype)


RowSizes = dict[tuple[int, int], Tensor]  # by use and dimension: Σ δ² over the other dimensions


def _row_sizes(
    surface: Surface,
    uses: Sequence[LayerUse],
    candidates: list[list[Layout]],
    outputs: Tensor,
    cotangent: Tensor,
    deep: list[torch.autograd.graph.GradientEdge],
) -> RowSizes:
    sizes: RowSizes = {}

    def listener(i: int, dims: set[int]) -> None:
        def note(delta: Tensor) -> None:
            for dim in dims:
                sizes[i, dim] = row_sizes(delta.detach(), dim)

        uses[i].on_output = note

    for i, fitting in enumerate(candidates):
        listener(i, {layout.dim for layout in fitting})
    try:
        pull(surface, outputs, cotangent, deep, uses)
    finally:
        for use in uses:
            use.on_output = None
    return sizes


def row_sizes(x: Tensor, dim: int) -> Tensor:
    """Σ x² over all other dimensions."""
    squares = x.double().square()
    others = [d for d in range(x.dim()) if d != dim]
    return squares.sum(dim=others) if others else squares


def rows_follow(
    before: Tensor, after: Tensor, layout: Layout, scales: Tensor, dtype: torch.dtype
) -> bool:
    """Whether each row's size changed by the square of the scale of the sample it should belong to.

    Sizes are those of gradients of this type, before and after the cotangents were scaled.
    """
    rounding = (1e3 * torch.finfo(dtype).eps) ** 2
    first = dataclasses.replace(layout, dim=0).split(before)
    second = dataclasses.replace(layout, dim=0).split(after)
    squares = scales.square()[:, None]
    expected = first * squares
    # The scaling itself hardly rounds; another sample is off by at least an eighth. A row whose
    # gradient cancels is left with rounding, of which nothing can be said.
    allowed = 1e-3 * expected + rounding * first.max() * squares
    return bool(((second - expected).abs() <= allowed).all())


def _routes(
    surface: Surface, uses: Sequence[LayerUse], layouts: list[Layout | None], outputs: Tensor
) -> dict[str, Route]:
    """A rule is used only where it has seen every use of a parameter, and knows its samples."""
    counts, recorded = parameter_uses(outputs), calls_by_parameter(uses)
    read: set[str] = set()  # those whose uses were all read off the graph
    unexplained: set[str] = set()
    added_up: set[str] = set()
    for use, layout in zip(uses, layouts, strict=True):
        for key, name in use.names.items() if use.edge is not None else ():
            if use.is_operation:
                read.add(name)
            if layout is None:
                unexplained.add(name)
            if not _is_own_use(surface, use, key, name):
                added_up.add(name)
    routes: dict[str, Route] = {}
    for name, parameter in surface.parameters.items():
        count, calls = counts.get(id(parameter), 0), recorded.get(name, 0)
        if count == 0:
            routes[name] = "unused"
        elif name in unexplained or (name not in read and calls != count):
            routes[name] = "generic"
        else:
            routes[name] = "single" if calls == 1 and name not in added_up else "sum"
    return routes


def _is_own_use(surface: Surface, use: LayerUse, key: str, name: str) -> bool:
    """Whether a parameter is used as what it counts as, the whole of it.

    Not a part of it, not in another module than its first owner, not as another kind of matrix.
    """
    if not use.is_operation:
        return surface.layers.of(name) == use.layer
    matrix, operand = surface.matrices.get(surface.layers.row_of(name)), use.operands[key]
    if matrix is None:
        return operand.is_whole
    same = type(matrix.rule) is type(use.rule) and matrix.shape == operand.view.shape
    return same and operand.is_whole
