"""How much memory a chunk of samples takes, and how large a chunk may be."""

from __future__ import annotations

import dataclasses

from ...math import contractions
from ...model.layer_hooks import LayerUse
from ...model.layers import AbstractMatrixRule, Layout

# Starting many small contractions takes longer than computing them, especially on a GPU: columns
# are collected and contracted together once a layer's gradients have this size.
GPU_HOLD_BYTES, CPU_HOLD_BYTES = 64 << 20, 8 << 20

# On a CPU a tensor above 32 MiB is allocated page by page each time, which takes longer than
# filling it; chunks keep every tensor well below that.
CPU_TENSOR_BYTES = 16 << 20
GRAPH_FACTOR = 6  # memory of a gradient's graph, relative to what a forward saves


def columns_to_hold(output_bytes: int, num_columns: int, *, on_cpu: bool) -> int:
    """How many columns to collect for a layer whose output takes this many bytes.

    >>> columns_to_hold(1 << 20, 9, on_cpu=True), columns_to_hold(1 << 30, 9, on_cpu=False)
    (8, 1)
    """
    limit = CPU_HOLD_BYTES if on_cpu else GPU_HOLD_BYTES
    return min(max(1, limit // max(output_bytes, 1)), num_columns)


@dataclasses.dataclass(frozen=True)
class Footprint:
    """Bytes per sample, by what they are used for."""

    saved: int  # saved by autograd for the backward
    cached: int  # stored by the layers between columns
    working: int  # the largest intermediate result of any layer
    collecting: tuple[int, ...]  # outputs of the layers that collect columns
    largest: int  # the largest output of a layer
    num_columns: int
    on_cpu: bool

    def bytes(self, num_samples: int, *, sweep: bool) -> int:
        """What a chunk of samples takes beside the model and its data."""
        if not sweep:  # no graph: activations live from one layer to the next
            return num_samples * (self.saved // 2)
        collected = sum(
            size * columns_to_hold(size, self.num_columns, on_cpu=self.on_cpu)
            for size in (num_samples * output for output in self.collecting)
        )
        in_flight = 3 * self.largest  # gradients that the backward itself holds at a time
        return num_samples * (self.saved + self.cached + self.working + in_flight) + collected

    @property
    def graph(self) -> int:
        """What the graph of a gradient takes, which can be differentiated again."""
        return GRAPH_FACTOR * max(self.saved, 1)

    @property
    def fitting(self) -> int:
        """How many samples keep every tensor small enough for a CPU to allocate quickly."""
        return max(1, CPU_TENSOR_BYTES // max(self.largest, 1)) if self.on_cpu else 1 << 30

    def chunk(self, memory: int, *, sweep: bool) -> int:
        """How many samples at a time stay within `memory` bytes; at least one."""
        low, high = 1, min(max(1, memory), self.fitting)
        while low < high:  # the largest number that fits, by halving
            middle = (low + high + 1) // 2
            if self.bytes(middle, sweep=sweep) <= memory:
                low = middle
            else:
                high = middle - 1
        return low


def footprint(
    uses: list[tuple[LayerUse, Layout]],
    *,
    saved: int,
    generic: int,
    num_columns: int,
    kappa: bool,
    memories: int,
    largest: int,
    on_cpu: bool,
) -> Footprint:
    """The footprint of a sweep, from the recorded uses of a few samples.

    `memories` counts the scalings of the features that κ is computed for, the plain one included.
    """
    cached, working, largest = 0, generic, max(largest, 1)
    collecting = []
    for use, layout in uses:
        rule = use.rule
        output = use.output.nbytes // layout.num_samples
        size = use.output.element_size()
        largest = max(largest, output)
        working = max(working, 4 * output)
        if not isinstance(rule, AbstractMatrixRule):
            cached += use.input.nbytes // layout.num_samples
            if not on_cpu:
                collecting.append(output)
            continue
        shape = rule.shape(use.module, use.input, use.output.shape, layout)
        form = contractions.choose_form(shape, num_columns=num_columns, kappa=kappa)
        cached += contractions.cached_floats(shape, form, num_columns, memories) * size
        floats = contractions.working_floats(shape, form, num_columns, memories)
        working = max(working, floats * size)
        if form != "direct":
            collecting.append(output)
    return Footprint(saved, cached, working, tuple(collecting), largest, num_columns, on_cpu)
