"""What is measured at the points of a line, besides the loss."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from ...api import measured
from ...engine.weight_space.perturbed import Weights
from ...measures.setup import Setup
from ...model.distributed import unwrapped
from ...records import Progress, Report
from .cache import Point
from .directions import GridPoints


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
