"""What a measurement will do, and how much memory that takes, before it is started."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from ..model.batches import num_samples, total_samples
from ..records import Cost
from .data_pass import Needs
from .preflight import Preflight
from .sample_memory import graphs_fit
from .sample_probes import SampleProbes
from .second_look import NEIGHBOURS
from .sweep.sums import RowKind
from .weight_space import product_check, trusted_derivatives
from .weight_space.groups import groups
from .weight_space.lanczos_room import full_bytes, least_bytes
from .weight_space.parameter_space import ParameterSpace
from .weight_space.probes import PILOT as WEIGHT_PILOT
from .weight_space.probes import PROBE_VECTORS, VECTOR_BYTES
from .weight_space.vector_memory import LEAST, bytes_of_product
from .workspace import Workspace

# of one kind of rows: a run, its gradient at the outputs of layers, and two draws
PILOT = Cost(forwards=1, backwards=1, products=SampleProbes.pilot)
GRADIENT_VECTORS = 2  # as large as the weights: those that were moved, and a gradient or a place


def forecast(
    workspace: Workspace,
    measures: Mapping[str, Needs],
    further: Mapping[str, Cost],
    further_in_all: Cost,
) -> Preflight:
    """What these measures will take; `further` is what some of them add to the shared pass."""
    plan, needs, method = workspace.plan, workspace.wanted, workspace.precision.method
    _, first = next(workspace.surface.batches())  # a guess at how large the others are
    by_samples = _by_sample_probes(workspace, measures)
    sweeps = needs.sweep and not by_samples
    probes = workspace.pilot_count if sweeps and workspace.by_probes else None
    footprint = plan.footprint if probes is None else plan.probe_footprint
    chunk = footprint.chunk(workspace.memory, sweep=sweeps)
    memory_of_one = 0
    cost = plan.cost(1, sweep=sweeps, num_columns=probes, spreads=needs.standardized)
    if by_samples:
        cost = cost if needs.without_sweep != Needs() else Cost()
        for _ in by_samples:
            cost += PILOT
        chunk, memory_of_one = workspace.product_chunk, footprint.graph
    chunk = min(chunk, max(1, num_samples(first)))
    products = needs.products or method in ("hutchinson", "hutch++")
    bends = needs.sweep and bool(plan.bent) and method not in ("exact", "output_probes")
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
        sum(sizes[id(surface.parameters[name])] for name in names) for names in groups(surface)
    )
    largest = max((size for key, size in sizes.items() if key in measured), default=0)
    # the others are in float64 too meanwhile, but neither moved nor differentiated
    held = sum(size for key, size in sizes.items() if key not in measured) if widened else 0
    vectors = product_check.VECTORS if products else GRADIENT_VECTORS
    most = NEIGHBOURS
    if products:
        chunk, most = workspace.product_chunk, trusted_derivatives.SAMPLES
        saved = workspace.plan.footprint.graph
    samples = min(most, trusted_derivatives.samples_at_once(surface, chunk))
    return vectors * weights + largest + held + samples * saved * (2 if widened else 1)
