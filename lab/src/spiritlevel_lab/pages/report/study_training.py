"""Training as it went: medians and quartiles over the runs, split by a setting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from spiritlevel.records.content import Cell, Chart, Column, Section, Table

from ...population.population import Population, Row, numbers_of
from .study_words import quartiles

MOST_EPOCHS = 100  # drawn; a curve of a thousand looks the same
LISTED_EPOCHS = 6  # in the table below the picture
PARTS = {"training": "train", "test": "test", "validation": "validation"}
Curve = dict[str, Any]


def dynamics(population: Population) -> Section | None:
    """Loss, accuracy and what was measured on the way, over the epochs; None without epochs."""
    if population.outcomes is not None:  # given networks: what they call an epoch is a setting
        return None
    last = max((row.get("epoch", 0) for row in population.done), default=0)
    if last < 2:
        return None
    epochs = _spread(last, MOST_EPOCHS)
    splits = {"all runs": {"all runs": population.done}} | {
        axis: population.grouped_rows(axis) for axis in population.varied if axis != "seed"
    }
    shown = ["loss", "accuracy", *population.while_training]
    views: dict[str, Any] = {}
    rows: list[list[Cell]] = []
    for i, (axis, groups) in enumerate(splits.items()):
        for j, what in enumerate(shown):
            if what in population.while_training:
                x, series = _measured(population, what, groups)
            else:
                x, series = epochs, _curves(population, what, groups, epochs)
            views[f"{i},{j}"] = {"x": x, "y_title": [f"{what} (median, quartiles)"]} | {
                "series": series
            }
            rows += _listed(axis, what, x, series)
    data = {
        "controls": [
            {"label": "Split by", "options": list(splits)},
            {"label": "Show", "options": shown},
        ],
        "x_title": "epoch",
        "views": views,
    }
    titles = ("split by", "curve", "value and part", "epoch", "quarter", "median", "3 quarters")
    table = Table(
        list(map(Column, titles)), rows, id="dynamics-values", title="Curves at some epochs"
    )
    thinned = "" if len(epochs) == last else f" {len(epochs)} of {last} epochs are drawn."
    caption = (
        f"Medians over the runs, bands from the lower to the upper quartile; n = "
        f"{len(population.done)} runs. A run that has stopped keeps its last loss and accuracy; "
        f"numbers that are not finite are left out.{thinned}"
    )
    chart = Chart("dynamics", "While training", "lines", data, table, caption)
    return Section("dynamics-section", "Training", [chart], folded=True)


def _curves(
    population: Population, what: str, groups: dict[str, list[Row]], epochs: list[int]
) -> list[Curve]:
    """Training and test, and validation where there is such data."""
    curves = []
    for colour, (value, runs) in enumerate(groups.items()):
        for place, (part, prefix) in enumerate(PARTS.items()):
            name = f"{value}, {part} (n = {len(runs)})"
            of_runs = (population.epochs.get(run["run"], ()) for run in runs)
            columns = [
                numbers for rows in of_runs if (numbers := numbers_of(rows, f"{prefix}_{what}"))
            ]
            bands = [_at(columns, epoch) for epoch in epochs]
            if any(band[2] is not None for band in bands):
                shade = colour if len(groups) > 1 else place
                curves.append(_series(name, bands, shade, dashed=part != "training"))
    return curves


def _measured(
    population: Population, measure: str, groups: dict[str, list[Row]]
) -> tuple[list[int], list[Curve]]:
    """At the epochs after which it was measured; runs that had stopped by then do not count."""
    values = population.while_training[measure]
    epochs = sorted({epoch for run in values.values() for epoch in run})
    curves = []
    for colour, (value, runs) in enumerate(groups.items()):
        here = [values[run["run"]] for run in runs if run["run"] in values]
        columns = [[run[epoch] for run in here if epoch in run] for epoch in epochs]
        bands = [quartiles(column) if column else [None] * 5 for column in columns]
        curves.append(_series(f"{value} (n up to {len(here)})", bands, colour, dashed=False))
    return epochs, curves


def _series(
    name: str, bands: Sequence[Sequence[float | None]], colour: int, *, dashed: bool
) -> Curve:
    return {
        "name": name,
        "y": [band[2] for band in bands],
        "low": [band[1] for band in bands],
        "high": [band[3] for band in bands],
        "colour": colour,
        "dashed": dashed,
    }


def _listed(axis: str, what: str, epochs: list[int], series: list[Curve]) -> list[list[Cell]]:
    """Rows of the table: a few epochs of each curve."""
    places = [place - 1 for place in _spread(len(epochs), LISTED_EPOCHS)]
    return [
        [axis, what, each["name"], epochs[i], each["low"][i], each["y"][i], each["high"][i]]
        for each in series
        for i in places
    ]


def _spread(last: int, count: int) -> list[int]:
    """Epochs from the first to the last: evenly, and closer at the start, where most happens.

    >>> _spread(81, 6)
    [1, 9, 41, 81]
    """
    if last <= count:
        return list(range(1, last + 1))
    steps = [i / (count // 2 - 1) for i in range(count // 2)]
    return sorted({round(last**s) for s in steps} | {round(1 + s * (last - 1)) for s in steps})


def _at(columns: Sequence[Sequence[float]], epoch: int) -> list[float | None]:
    """Quartiles over the runs; one that has stopped keeps its last number."""
    values = [column[min(epoch, len(column)) - 1] for column in columns]
    values = [value for value in values if math.isfinite(value)]
    return quartiles(values) if values else [None] * 5
