"""The cost of a measurement, said before it is started."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ..content import Part, Text
from ..notebooks import Described
from ..records import Cost


@dataclasses.dataclass(frozen=True)
class Preflight(Described):
    """What a measurement would cost, before it is started."""

    cost_per_sample: Cost
    num_columns: int
    num_probes: int | None  # output probes to start with; None takes all columns
    num_sample_probes: int | None  # sample probes to start with; then no sweep is sure to follow
    chunk: int
    memory: int  # bytes that a chunk of samples takes beside the model
    vector_memory: int  # bytes of Lanczos vectors or weight probes, each as large as the weights
    look_memory: int  # bytes that looking at the model's derivatives first takes beside it
    limit: int  # bytes that samples, and vectors with them, may take
    products: bool  # whether products with the Hessian are sure to follow
    slow_parameters: tuple[str, ...]
    measures: tuple[str, ...]
    # by measure, for one sample: what searches and draws take at most beyond the shared pass
    further: Mapping[str, Cost] = dataclasses.field(default_factory=dict)
    further_in_all: Cost = dataclasses.field(default_factory=Cost)  # what they share counts once

    @property
    def peak_memory(self) -> int:
        """Bytes that the measurement takes beside the model, the look at derivatives included."""
        return max(self.memory + self.vector_memory, self.look_memory)

    def describe(self) -> list[Part]:
        """What a sample costs, what it takes in memory, and what may follow."""
        passes = self.cost_per_sample.passes(1)
        lines = [
            f"{passes} per sample, {self.chunk} samples at a time, "
            f"about {_size(self.peak_memory)} in addition to the model"
        ]
        if self.vector_memory and self.vector_memory >= self.look_memory:
            lines.append(
                f"of that, {_size(self.vector_memory)} for vectors as large as the weights; a "
                "'memory' below it makes more passes of fewer vectors"
            )
        if self.look_memory > max(self.memory + self.vector_memory, self.limit):
            lines.append(
                f"of that, {_size(self.memory + self.vector_memory)} for the measures: looking "
                "first whether the model's derivatives are right takes more than the limit of "
                f"{_size(self.limit)}, because it holds vectors as large as the weights"
            )
        if self.further:
            names = list(self.further)
            others = f" and {len(names) - 3} more" if len(names) > 3 else ""
            most = self.further_in_all.passes(1)
            lines.append(f"plus up to {most} per sample for {', '.join(names[:3])}{others}")
        if self.num_probes is not None:
            lines.append(
                f"{self.num_probes} output probes instead of {self.num_columns} columns; more "
                "follow if the precision requires it"
            )
        if self.num_sample_probes is not None:
            lines.append(
                f"{self.num_sample_probes} sample probes of each kind of value, since the outputs "
                f"bend in nearly all weights; more follow if the precision requires it, or a sweep "
                f"of {self.num_columns} columns"
            )
        if self.products:
            lines.append("plus products with the Hessian, as many as it takes to converge")
        if self.slow_parameters:
            shown = ", ".join(self.slow_parameters[:3])
            more = len(self.slow_parameters) - 3
            lines.append(
                f"twice the work, because they need per-sample gradients: {shown}"
                + (f" and {more} more" if more > 0 else "")
            )
        return [Text(lines)]


def _size(num_bytes: int) -> str:
    """A number of bytes, as text.

    >>> _size(700), _size(5 << 20)
    ('1 KiB', '5 MiB')
    """
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if num_bytes >= size:
            return f"{num_bytes / size:.3g} {unit}"
    return f"{max(1, round(num_bytes / 1024))} KiB"
