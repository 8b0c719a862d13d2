"""The loss at every point of a grid: cached points are read, new ones are added to the cache."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ...engine.weight_space.probes import VECTOR_BYTES
from ...engine.workspace import Workspace
from ...ground.errors import SpiritlevelError
from ...records.measurements import Progress
from . import fingerprints
from .cache import Cache, Point
from .directions import GridPoints
from .evaluation import Height, heights

TOGETHER = 4  # points per pass over the data: few, because a pass that is stopped is lost
ELSEWHERE = ("device", "torch", "reduction")  # settings that may differ on another machine


def open_cache(
    workspace: Workspace, path: str | os.PathLike[str], settings: Mapping[str, Any]
) -> Cache:
    """The cache for the same weights, data, loss and directions; the grid may differ."""
    with workspace.surface.processes.together():
        data = fingerprints.of_data(workspace.surface)
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
