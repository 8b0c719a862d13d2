"""The gap over relative flatness as paper 000 draws it: plainly, by logarithms, as a density."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from ...content import Figure, Series
from ...math.kde import GaussianMixture, scott
from ..judging.experiment import Row
from ..judging.rows import column
from .optimizers_and_rates import HEAD

FLATNESS = "relative flatness of the head"
PLACES, MARGIN = 80, 0.6  # of a density: points, and decades beyond the outermost networks
FEWEST = 4  # networks that have a density


def drawn(rows: Sequence[Row], gap: str) -> list[Row]:
    """Networks with a finite positive flatness and a finite gap."""
    return [
        row
        for row in rows
        if all(row.get(name) is not None and math.isfinite(row[name]) for name in (HEAD, gap))
        and row[HEAD] > 0
    ]


def marks(
    groups: Mapping[str, Sequence[Row]],
    gap: str,
    gap_label: str,
    title: str,
    *,
    log_x: bool = False,
    log_y: bool = False,
    density: bool = False,
) -> Figure:
    """One mark a network and a line through each group; with `density` contours in its place."""
    series = []
    for name, rows in groups.items():
        there = [row for row in drawn(rows, gap) if not log_y or row[gap] > 0]
        series.append(Series(name, column(there, HEAD), column(there, gap)))
    return Figure(
        *(FLATNESS, gap_label, series),
        log_x=log_x,
        log_y=log_y,
        points=True,
        fitted=not density and not log_y,
        density=density,
        title=title,
    )


def flatness_density(rows: Sequence[Row], gap: str, title: str) -> Figure:
    """How many networks have which flatness: a kernel density over its logarithm, per decade."""
    values = [math.log10(row[HEAD]) for row in drawn(rows, gap)]
    series = [Series("networks", *density_line(values))]
    return Figure(FLATNESS, "density, per decade", series, log_x=True, title=title)


def density_line(values: Sequence[float]) -> tuple[list[float], list[float]]:
    """A Gaussian kernel density with Scott's bandwidth, of logarithms to base 10.

    Gives places as numbers, not logarithms, and the density there; empty for few values or equal
    ones.
    """
    if len(values) < FEWEST or min(values) == max(values):
        return [], []
    points = torch.tensor(values, dtype=torch.float64)[:, None]
    ends = min(values) - MARGIN, max(values) + MARGIN
    places = torch.linspace(*ends, PLACES, dtype=torch.float64)
    heights = GaussianMixture(points, scott(points)).log_density(places[:, None]).exp()
    return (10**places).tolist(), heights.tolist()
