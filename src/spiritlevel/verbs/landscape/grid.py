"""The points of a slice: where they are, and the loss and further measures at each of them."""

from __future__ import annotations

import copy
import dataclasses
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ...engine.weight_space.perturbed import Weights
from ...engine.weight_space.probes import VECTOR_BYTES
from ...engine.workspace import Workspace
from ...ground.errors import SpiritlevelError, brief
from ...ground.need import need, or_none
from ...measures.setup import Setup
from ...model.arithmetic import full_precision
from ...model.distributed import unwrapped
from ...model.losses import CrossEntropy
from ...model.output_checks import refuse_unless_counted
from ...model.surface import Surface
from ...records.measurements import Progress, Report
from ..measuring import measured
from .cache import Cache, Height, Point, of_data
from .directions import GridPoints


def heights(surface: Surface, points: Sequence[Weights], *, chunk: int) -> list[Height]:
    """The height at each point, from one pass over the data.

    Unlike in `PerturbedLoss.losses`, an overflow is not replaced: a picture has a gap there.
    A sample whose outputs are not finite misses its target.
    """
    sums = torch.zeros(3, len(points), dtype=torch.float64, device=surface.device)
    loss = surface.loss
    with torch.no_grad(), full_precision(), surface.processes.together():
        for where, batch in surface.chunks(chunk):
            for i, point in enumerate(points):
                outputs, targets = surface.outputs(
                    batch, where=where, parameters=point, may_overflow=bool(point)
                )
                weights = loss.weights(outputs, targets).double()
                sums[0, i] += loss.values(outputs.double(), targets).sum()
                sums[1, i] += weights.sum()
                if isinstance(loss, CrossEntropy):
                    whole = outputs.isfinite().reshape(len(outputs), -1).all(dim=1)
                    missed = loss.errors(outputs.nan_to_num(), targets).double()
                    sums[2, i] += missed.where(whole, weights).sum()
    surface.processes.sum_(sums)
    total, weight, missed = sums.tolist()
    refuse_unless_counted(all(weight))
    counts = isinstance(loss, CrossEntropy)
    return [
        Height(a / w, m / w if counts else None)
        for a, w, m in zip(total, weight, missed, strict=True)
    ]


POINTS = {1: 41, 2: 21}  # along each axis, by the number of axes
MAX_POINTS = 100_000  # along an axis: each takes a pass over the data
REACH = {False: 1.0, True: 0.5}  # whether between checkpoints
SNAP = 1e-9  # of the axis: a grid point this close to a checkpoint is the checkpoint


def coordinates(
    *, dimensions: int = 1, points: int | None = None, reach: float | None = None, between: bool
) -> list[float]:
    """Equal steps over one axis of several; the networks themselves are always among them.

    From −reach to reach around one network at 0; between networks at 0 and 1, `reach` is how far
    the axis goes beyond both. Settings that give no grid are refused.

    >>> coordinates(points=5, reach=1.0, between=False)
    [-1.0, -0.5, 0.0, 0.5, 1.0]
    >>> coordinates(points=4, reach=0.5, between=True)
    [-0.5, 0.0, 0.16666666666666663, 0.8333333333333333, 1.0, 1.5]
    """
    _check_grid(dimensions=dimensions, points=points, reach=reach, between=between)
    points = POINTS[dimensions] if points is None else points
    reach = REACH[between] if reach is None else reach
    low, high = -reach, (1.0 + reach if between else reach)
    networks = (0.0, 1.0) if between else (0.0,)
    length = high - low
    places = {low + length * i / (points - 1) for i in range(points)}
    for network in networks:
        places = {x for x in places if abs(x - network) > SNAP * length} | {network}
    return sorted(places)


def _check_grid(*, dimensions: int, points: int | None, reach: float | None, between: bool) -> None:
    need("dimensions", dimensions, lambda size: size in POINTS, "1 (a line) or 2 (a plane)")
    need(
        "points",
        points,
        or_none(lambda count: 2 <= count <= MAX_POINTS),
        f"at least 2, so that an axis has two ends, and at most {MAX_POINTS:,}",
        f"Leave it out for {POINTS[1]} on a line and {POINTS[2]} by {POINTS[2]} on a plane.",
    )
    if reach is None:
        return
    if not math.isfinite(reach) or reach < 0 or (reach == 0 and not between):
        needed = "not be negative" if between else "be positive"
        raise SpiritlevelError(
            f"The 'reach' argument must {needed} and finite: how far the slice goes. Got "
            f"{brief(reach)}. Leave it out for {REACH[between]}."
        )


TOGETHER = 4  # points per pass over the data: few, because a pass that is stopped is lost
ELSEWHERE = ("device", "torch", "reduction")  # settings that may differ on another machine


def open_cache(
    workspace: Workspace, path: str | os.PathLike[str], settings: Mapping[str, Any]
) -> Cache:
    """The cache for the same weights, data, loss and directions; the grid may differ."""
    with workspace.surface.processes.together():
        data = of_data(workspace.surface)
    key = {name: value for name, value in settings.items() if name not in ELSEWHERE}
    return Cache(path, key | {"data": data})


def evaluate_grid(
    workspace: Workspace,
    points: GridPoints,
    grid: Sequence[Point],
    cache: Cache | None,
    progress: Progress | None,
) -> tuple[list[Height], int]:
    """The height of every point of the grid, and how many came from the cache."""
    surface = workspace.surface
    heights_by_point: dict[Point, Height] = {}
    with surface.processes.together():
        if cache is not None and surface.processes.rank == 0:
            heights_by_point = cache.read()
    heights_by_point = surface.processes.gather(heights_by_point)[0]
    missing = sorted(
        (point for point in grid if point not in heights_by_point), key=any
    )  # the network itself first
    size = sum(p.numel() * p.element_size() for p in workspace.perturbed.weights.values())
    together = max(1, min(TOGETHER, workspace.vector_memory.room(VECTOR_BYTES) // size))
    for first in range(0, len(missing), together):
        group = missing[first : first + together]
        _count_all(workspace, progress, before=first, group=len(group), points=len(missing))
        moved = [points.at(point) for point in group]
        values = heights(surface, moved, chunk=workspace.perturbed.chunk)
        _check_middle(group, values)
        heights_by_point.update(zip(group, values, strict=True))
        with surface.processes.together():
            if cache is not None and surface.processes.rank == 0:
                cache.add(group, values)
    return [heights_by_point[point] for point in grid], len(grid) - len(missing)


def _check_middle(group: Sequence[Point], values: Sequence[Height]) -> None:
    """Refuse a loss that has no value at the network itself."""
    for point, height in zip(group, values, strict=True):
        if not any(point) and not math.isfinite(height.loss):
            raise SpiritlevelError(
                "The loss must be finite at the network's own weights. It is "
                f"{height.loss} although the outputs are finite. Check their size "
                "and the 'loss' argument."
            )


def _count_all(
    workspace: Workspace, progress: Progress | None, *, before: int, group: int, points: int
) -> None:
    """Make the next pass report progress over the whole slice."""
    if progress is not None:
        start, total = workspace.num_samples * before, workspace.num_samples * points
        workspace.surface.progress = lambda done, _, what: progress(
            start + group * done, total, "the loss on the slice"
        )


def measure_points(
    setup: Setup,
    model: nn.Module,
    data: Iterable[Any],
    points: GridPoints,
    grid: Sequence[Point],
    measures: str | Sequence[str],
) -> tuple[Report, ...]:
    """One report for each point."""
    network = copy.deepcopy(unwrapped(model))
    start = {name: tensor.detach().clone() for name, tensor in _tensors(network).items()}
    reports = []
    for number, point in enumerate(grid, start=1):
        _write(network, start | points.at(point))
        told = setup.progress and _numbered(setup.progress, number, len(grid))
        at_point = dataclasses.replace(setup, progress=told)
        reports.append(measured(at_point, network, data, measures=measures))
    return tuple(reports)


def _tensors(network: nn.Module) -> Weights:
    return dict(network.named_parameters()) | dict(network.named_buffers())


def _write(network: nn.Module, values: Weights) -> None:
    with torch.no_grad():
        for name, tensor in _tensors(network).items():
            tensor.copy_(values[name])


def _numbered(progress: Progress, number: int, of: int) -> Progress:
    """The progress of one point, which says which one it is."""

    def told(done: int, total: int | None, what: str) -> None:
        progress(done, total, f"point {number} of {of}: {what}")

    return told
