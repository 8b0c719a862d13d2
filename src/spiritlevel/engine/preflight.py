"""What a measurement will do, and what it takes in work and memory, before it is started."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar

import torch

from ..model.batches import num_samples, total_samples
from ..records.content import Part, Text
from ..records.measurements import Cost
from ..records.notebooks import Shown
from .data_pass import Needs
from .memory import LEAST, bytes_of_product, graphs_fit
from .prices import Prices
from .sample_probes import SampleProbes
from .sweep.sums import RowKind
from .sweep.witnesses import NEIGHBOURS
from .weight_space import product_methods, trusted_derivatives
from .weight_space.eigenvalues import full_bytes, least_bytes
from .weight_space.parameter_space import ParameterSpace, parameter_groups
from .weight_space.probes import PILOT as WEIGHT_PILOT
from .weight_space.probes import PROBE_VECTORS, VECTOR_BYTES
from .workspace import Workspace

# of one kind of rows: a run, its gradient at the outputs of layers, and two draws
PILOT = Cost(forwards=1, backwards=1, products=SampleProbes.pilot)
GRADIENT_VECTORS = 2  # as large as the weights: those that were moved, and a gradient or a place


@dataclasses.dataclass(frozen=True, repr=False)
class Preflight(Shown):
    """What a measurement would cost, before it is started."""

    HEADING: ClassVar = "What the measurement would take"

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
    prices: Prices | None = None  # of all data, with the probes that estimates usually take

    @property
    def forward_backwards(self) -> float | None:
        """What the measurement will probably take over the data; None if nobody estimated it."""
        return None if self.prices is None else self.prices.likely

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
        if self.prices is not None:
            lines.append(self.prices.in_words())
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


def forecast(
    workspace: Workspace,
    measures: Mapping[str, Needs],
    further: Mapping[str, Cost],
    further_in_all: Cost,
) -> Preflight:
    """What these measures will take; `further` is what some of them add to the shared pass."""
    plan, needs, way = workspace.plan, workspace.wanted, workspace.precision.way
    _, first = next(workspace.surface.batches())  # a guess at how large the others are
    by_samples = _by_sample_probes(workspace, measures)
    sweeps = needs.sweep and not by_samples
    probes = workspace.pilot_count if sweeps and workspace.by_probes else None
    footprint = plan.footprint if probes is None else plan.probe_footprint
    chunk = footprint.chunk(workspace.memory, sweep=sweeps)
    memory_of_one = 0
    elements = sweeps and workspace.takes_elements
    cost = plan.cost(
        1, sweep=sweeps, num_columns=probes, spreads=needs.standardized, elements=elements
    )
    if by_samples:
        cost = cost if needs.without_sweep != Needs() else Cost()
        for _ in by_samples:
            cost += PILOT
        chunk, memory_of_one = workspace.product_chunk, footprint.graph
    chunk = min(chunk, max(1, num_samples(first)))
    products = needs.products or not way.ggn
    bends = needs.sweep and bool(plan.bent) and way.residual and not elements
    look = 0
    if needs.sweep or products:
        look = _look_memory(workspace, chunk=chunk, products=products or bends)
    slow = [name for name, route in plan.routes.items() if route == "generic"]
    return Preflight(
        cost_per_sample=cost,
        num_columns=plan.num_columns,
        num_probes=probes,
        num_sample_probes=SampleProbes.pilot if by_samples else None,
        chunk=chunk,
        memory=max(
            footprint.bytes(chunk, sweep=sweeps),
            chunk * memory_of_one,
            _kept_graphs(workspace, num_samples(first)) if needs.products else 0,
        ),
        vector_memory=_vector_memory(workspace) if products else 0,
        look_memory=look,
        limit=workspace.memory,
        products=products,
        slow_parameters=() if by_samples else tuple(slow),
        measures=tuple(measures),
        further=further,
        further_in_all=further_in_all,
    )


def _by_sample_probes(workspace: Workspace, measures: Mapping[str, Needs]) -> set[RowKind]:
    """The kinds of rows that are first looked for without a sweep; none if it comes first."""
    if not workspace.wanted.sweep or not workspace.sweep_can_wait:
        return set()
    kinds: set[RowKind] = set()
    for needs in measures.values():
        if needs.sweep:
            kinds.add("kappa" if needs.kappa else "rho" if needs.rho else "trace")
    surface = workspace.surface
    matrices = [surface.layers.weight_of(row) for row in surface.matrices]
    applies = {
        kind: not SampleProbes.unknown_uses(
            workspace.plan, surface.parameters if kind == "trace" else matrices
        )
        for kind in kinds
    }
    return kinds if all(applies.values()) else set()


def _kept_graphs(workspace: Workspace, batch: int) -> int:
    """Bytes of the graphs that products one after another share, with batches of this size."""
    total = total_samples(workspace.surface.data)
    if total is None:
        return 0
    is_kept = graphs_fit(
        total,
        math.ceil(total / max(1, min(batch, workspace.product_chunk))),
        most=workspace.kept_samples,
        weights=sum(p.nbytes for p in workspace.surface.parameters.values()),
        is_limited=workspace.vector_memory.limit is not None,
    )
    return total * workspace.plan.footprint.graph if is_kept else 0


def _vector_memory(workspace: Workspace) -> int:
    """Bytes of the Lanczos vectors or the weight probes that are held at a time."""
    space, limit = ParameterSpace(workspace.surface), workspace.vector_memory.limit
    if workspace.wanted.products:
        least, most = least_bytes(space, 1), full_bytes(space, 1)
        if space.device.type != "cpu":  # the host may keep the basis
            least = space.size * bytes_of_product(space.dtype)
    else:
        least = PROBE_VECTORS * space.size * bytes_of_product(space.dtype)
        most = max(least, min(VECTOR_BYTES, WEIGHT_PILOT * least))
    return most if limit is None else max(least, min(most, max(limit, LEAST)))


def _look_memory(workspace: Workspace, *, chunk: int, products: bool) -> int:
    """Bytes beside the model at the peak of the look at derivatives, after a pass with this chunk.

    `products` looks at products with the Hessian too. Some of it is as large as the weights,
    whatever `memory` allows a chunk of samples.
    """
    surface, saved = workspace.surface, workspace.plan.footprint.saved
    widened = trusted_derivatives.is_widened(surface) and surface.dtype != torch.float64
    measured = {id(p) for p in surface.parameters.values()}
    sizes = {
        id(p): p.numel() * torch.float64.itemsize if widened else p.nbytes
        for p in surface.model.parameters()
    }
    weights = max(
        sum(sizes[id(surface.parameters[name])] for name in names)
        for names in parameter_groups(surface)
    )
    largest = max((size for key, size in sizes.items() if key in measured), default=0)
    # the others are in float64 too meanwhile, but neither moved nor differentiated
    held = sum(size for key, size in sizes.items() if key not in measured) if widened else 0
    vectors = product_methods.VECTORS if products else GRADIENT_VECTORS
    most = NEIGHBOURS
    if products:
        chunk, most = workspace.product_chunk, trusted_derivatives.SAMPLES
        saved = workspace.plan.footprint.graph
    samples = min(most, trusted_derivatives.samples_at_once(surface, chunk))
    return vectors * weights + largest + held + samples * saved * (2 if widened else 1)
