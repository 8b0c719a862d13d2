"""Pictures of a population: measures with each other, settings, layers, training as it went."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from spiritlevel.ground.files import natural
from spiritlevel.records.content import Cell, Chart, Column, Section, Table

from ...population.population import Population, Row, numbers_of
from ...statistics import Correlation, spearman
from ...statistics.tables import rounded
from .study_words import finite, quartiles, upright


def heatmap(population: Population) -> Section | None:
    """Which measures order the runs alike; None for a single measure."""
    names = population.measures
    if len(names) < 2:
        return None
    columns = {name: [row.get(name) for row in population.done] for name in names}
    correlations = {
        (one, other): spearman(columns[one], columns[other])
        for one, other in itertools.combinations(names, 2)
    }
    both = correlations | {(b, a): rho for (a, b), rho in correlations.items()}
    cells = [[both.get((one, other)) for other in names] for one in names]
    data = {
        "rows": names,
        "columns": names,
        "values": [[None if rho is None else rounded(rho.value) for rho in row] for row in cells],
        "notes": [[_note(rho) for rho in row] for row in cells],
        "range": [-1, 1],
        "scale": "diverging",
        "title": "Spearman ρ",
    }
    rows: list[list[Cell]] = [
        [one, other, rounded(rho.value), rho.n, rho.excluded]
        for (one, other), rho in correlations.items()
    ]
    titles = ("measure", "other measure", "Spearman ρ", "n", "out")
    pairs = Table(list(map(Column, titles)), rows, id="heatmap-values", title="Pairs of measures")
    chart = Chart(
        "heatmap",
        "Measures with each other",
        "heatmap",
        data,
        pairs,
        f"Spearman's ρ of each pair over up to {len(population.done)} runs; point at a cell for "
        "its n. Two measures near ±1 order the "
        "runs alike: what one says about the gap, the other says too.",
    )
    return Section("heatmap-section", "Measures with each other", [chart], folded=True)


def _note(rho: Correlation | None) -> str:
    if rho is None:
        return "the measure itself"
    return f"n = {rho.n}{', ' * bool(rho.reason)}{rho.reason}"


def boxes(population: Population) -> Section | None:
    """How a setting moves each outcome and measure; None where no setting differs."""
    axes = [axis for axis in population.varied if axis != "seed"]
    if not axes:
        return None
    targets = [name for name in population.targets if finite(population.done, name)]
    quantities = [*targets, *population.measures]
    views: dict[str, Any] = {}
    rows: list[list[Cell]] = []
    for i, axis in enumerate(axes):
        for value, runs in population.grouped_rows(axis).items():
            for j, name in enumerate(quantities):
                values = finite(runs, name)
                if values:
                    five = quartiles(values)
                    box = {"name": value, "n": len(values), "five": five}
                    views.setdefault(f"{i},{j}", []).append(box)
                    rows.append([axis, value, name, len(values), *five])
    data = {
        "controls": [
            {"label": "Split by", "options": axes},
            {"label": "Show", "options": quantities},
        ],
        "y_titles": [upright(name) for name in quantities],
        "views": views,
    }
    titles = ("setting", "value", "measure or outcome", "n", "smallest", "quarter", "median")
    columns = [Column(title) for title in (*titles, "3 quarters", "largest")]
    caption = (
        "Box: quartiles, with the median; whiskers: smallest and largest run. n is written below "
        "each box. All other settings differ within a box."
    )
    values_table = Table(columns, rows, id="boxes-values", title="The boxes in numbers")
    chart = Chart("boxes", "By setting", "boxes", data, values_table, caption)
    return Section("boxes-section", "What the settings do", [chart], folded=True)


def layers(population: Population) -> Section | None:
    """The median run, layer by layer, for each measure that has layers."""
    profiles = {
        name: by_layer
        for name in population.layers
        if len(by_layer := _by_layer(population, name)) > 1
    }
    if not profiles:
        return None
    views: dict[str, Any] = {}
    rows: list[list[Cell]] = []
    for i, (name, by_layer) in enumerate(profiles.items()):
        places = sorted(by_layer, key=natural)
        bands = [quartiles(by_layer[layer]) for layer in places]
        most = max(map(len, by_layer.values()))
        views[str(i)] = {
            "y_title": [f"{name}, of the layer alone"],
            "x": places,
            "series": [_series(f"median over runs (n up to {most})", bands, 0, dashed=False)],
        }
        rows += [
            [name, layer, len(by_layer[layer]), *band[1:4]]
            for layer, band in zip(places, bands, strict=True)
        ]
    data = {
        "controls": [{"label": "Measure", "options": list(profiles)}],
        "x_title": "layer, by name",
        "views": views,
    }
    titles = ("measure", "layer", "n", "quarter", "median", "3 quarters")
    values = Table(list(map(Column, titles)), rows, id="layers-values", title="Layers in numbers")
    caption = (
        "Medians over the runs that have the layer, bands from the lower to the upper quartile. "
        "Layers are sorted by name, not by their order in the network."
    )
    chart = Chart("layers", "Layer by layer", "lines", data, values, caption)
    return Section("layers-section", "Layers", [chart], folded=True)


def _by_layer(population: Population, measure: str) -> dict[str, list[float]]:
    """Finite values over the runs, by layer."""
    values: dict[str, list[float]] = {}
    for of_run in population.layers[measure].values():
        for layer, value in of_run.items():
            if math.isfinite(value):
                values.setdefault(layer, []).append(value)
    return values


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
        bands = [quartiles(column) for column in columns]
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
    values = (column[min(epoch, len(column)) - 1] for column in columns)
    return quartiles([value for value in values if math.isfinite(value)])
