"""What is measured at the points of a line, besides the loss."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ...engine.weight_space.perturbed import Weights
from ...model.distributed import unwrapped
from ...records.measurements import Progress, Report
from ..measuring import measure
from .cache import Point
from .directions import GridPoints


def measure_points(
    model: nn.Module,
    data: Iterable[Any],
    points: GridPoints,
    grid: Sequence[Point],
    arguments: Mapping[str, Any],
    progress: Progress | None,
) -> tuple[Report, ...]:
    """One report for each point; `arguments` are those of `measure`."""
    network = copy.deepcopy(unwrapped(model))
    start = {name: tensor.detach().clone() for name, tensor in _tensors(network).items()}
    reports = []
    for number, point in enumerate(grid, start=1):
        _write(network, start | points.at(point))
        told = None if progress is None else _numbered(progress, number, len(grid))
        reports.append(measure(network, data, progress=told, **arguments))
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
