"""Pictures of a population: measures with each other, settings, layers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

from spiritlevel.ground.files.names import natural
from spiritlevel.records.content import Cell, Chart, Column, Section, Table

from ...population.population import Population
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
    data = {
        "rows": names,
        "columns": names,
        "values": [[_cell(correlations, one, other) for other in names] for one in names],
        "notes": [[_note(correlations, one, other) for other in names] for one in names],
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


def _cell(
    correlations: Mapping[tuple[str, str], Correlation], one: str, other: str
) -> float | None:
    return None if one == other else rounded(_of(correlations, one, other).value)


def _note(correlations: Mapping[tuple[str, str], Correlation], one: str, other: str) -> str:
    if one == other:
        return "the measure itself"
    rho = _of(correlations, one, other)
    return f"n = {rho.n}{', ' * bool(rho.reason)}{rho.reason}"


def _of(correlations: Mapping[tuple[str, str], Correlation], one: str, other: str) -> Correlation:
    return correlations.get((one, other)) or correlations[other, one]


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
        views[str(i)] = {
            "y_title": [f"{name}, of the layer alone"],
            "x": places,
            "series": [
                {
                    "name": f"median over runs (n up to {max(map(len, by_layer.values()))})",
                    "y": [band[2] for band in bands],
                    "low": [band[1] for band in bands],
                    "high": [band[3] for band in bands],
                    "colour": 0,
                    "dashed": False,
                }
            ],
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
