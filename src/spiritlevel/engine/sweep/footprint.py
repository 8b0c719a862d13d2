"""How much memory a chunk of samples takes, and how large a chunk may be."""

from __future__ import annotations

import dataclasses

from ...math import contractions
from ...model.layer_hooks import LayerUse
from ...model.layers import AbstractMatrixRule, AbstractRule, Layout

# Starting many small contractions takes longer than the contractions, above all on a GPU: columns
# are held back and contracted together until a layer's gradients have this size.
GPU_HOLD_BYTES, CPU_HOLD_BYTES = 64 << 20, 8 << 20

# On a CPU a tensor above 32 MiB is handed out page by page each time anew, which takes longer than
# filling it; chunks keep every tensor well below.
CPU_TENSOR_BYTES = 16 << 20


def held_columns(output_bytes: int, num_columns: int, *, on_cpu: bool) -> int:
    """How many columns a layer with this much at its output holds back.

    >>> held_columns(1 << 20, 9, on_cpu=True), held_columns(1 << 30, 9, on_cpu=False)
    (8, 1)
    """
    limit = CPU_HOLD_BYTES if on_cpu else GPU_HOLD_BYTES
    return min(max(1, limit // max(output_bytes, 1)), num_columns)


@dataclasses.dataclass(frozen=True)
class Footprint:
    """Bytes of one sample, by what happens to them."""

    saved: int  # kept by autograd for the backward
    kept: int  # kept by the layers between columns
    working: int  # the largest intermediate of any one layer
    held: tuple[int, ...]  # outputs of the layers that hold columns back
    largest: int  # the largest output of a layer
    num_columns: int
    on_cpu: bool

    def bytes(self, num_samples: int, *, sweep: bool) -> int:
        """What a chunk of samples takes beside the model and its data."""
        if not sweep:  # no graph: activations live from one layer to the next
            return num_samples * (self.saved // 2)
        held = sum(
            size * held_columns(size, self.num_columns, on_cpu=self.on_cpu)
            for size in (num_samples * output for output in self.held)
        )
        in_flight = 3 * self.largest  # what the backward itself has in hand at a time
        return num_samples * (self.saved + self.kept + self.working + in_flight) + held

    @property
    def fitting(self) -> int:
        """How many samples keep every tensor of a size that a CPU hands out quickly."""
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
    uses: list[tuple[LayerUse, AbstractRule, Layout]],
    *,
    saved: int,
    generic: int,
    num_columns: int,
    kappa: bool,
    memories: int,
    largest: int,
    on_cpu: bool,
) -> Footprint:
    """From the uses of a probe: what the contraction of each will take.

    `memories` counts the scales of the features that are looked at: their own, and others.
    """
    kept, working, largest = 0, generic, max(largest, 1)
    held = []
    for use, rule, layout in uses:
        output = use.output.nbytes // layout.num_samples
        size = use.output.element_size()
        largest = max(largest, output)
        working = max(working, 4 * output)
        if not isinstance(rule, AbstractMatrixRule):
            kept += use.input.nbytes // layout.num_samples
            if not on_cpu:
                held.append(output)
            continue
        shape = rule.shape(use.module, use.input, use.output.shape, layout)
        form = contractions.choose_form(shape, num_columns=num_columns, kappa=kappa)
        kept += contractions.cached_floats(shape, form, num_columns, memories) * size
        floats = contractions.working_floats(shape, form, num_columns, memories)
        working = max(working, floats * size)
        if form != "direct":
            held.append(output)
    return Footprint(saved, kept, working, tuple(held), largest, num_columns, on_cpu)
