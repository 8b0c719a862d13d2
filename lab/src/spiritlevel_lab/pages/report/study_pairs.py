"""Every measure with every outcome: what judges each pair, and the points themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from spiritlevel.records.content import Cell, Chart, Column, Section, Table, Text
from spiritlevel.results import Progress

from ...population.outcome_names import TARGETS
from ...population.population import Population, label
from ...statistics import Association, Associations, Correlation, Regression, regression
from ...statistics.tables import rounded
from ..study_answer import StudyAnswer, chance, in_words, strength
from .study_words import finite, quartiles, setting, short, title

MOST_CELLS = 6000  # of the table below the picture; beyond, each measure is summed up in a row
MOST_COLOURS = 16  # settings that can be told apart by colour and shape
BOUND = "bound.generalization"


def scatter(
    population: Population, target: str, said: StudyAnswer, progress: Progress | None
) -> Section | None:
    """The measures against the targets, with linear, log and density views."""
    wanted = dict.fromkeys((*said.outcomes, *population.targets))  # a number of the study's own too
    targets = [name for name in wanted if finite(population.done, name)]
    measures = [name for name in population.measures if name != target]
    if not targets or not measures or said.best is None:
        return None
    pairs = []
    for i, name in enumerate(measures):
        if progress is not None:
            progress(i, len(measures), name)
        pairs.append([_pair(population, name, t, said.outcomes.get(t, {})) for t in targets])
    best = measures.index(said.best.name)
    positive = all(value > 0 for value in finite(population.done, said.best.name))
    data = {
        **_points(population, measures, targets),
        "pairs": pairs,
        "chosen": {
            "measure": best,
            "target": targets.index(target) if target in targets else 0,
            "scale": "log" if positive and said.best.tails.heavy else "linear",
        },
    }
    chart = Chart(
        id="scatter",
        title="Measure against outcome",
        kind="scatter",
        data=data,
        table=_values(population, measures, targets),
        caption=(
            f"Each point is a network: {len(population.done)} were finished. "
            f"{_shown(population)}Each colour has a line of its own by least squares, if it has 4 "
            "networks or more: where these lines rise and the dashed one falls, the setting makes "
            "the difference."
        ),
    )
    return Section("scatter-section", f"Measures against the {in_words(target)}", [chart])


def _shown(population: Population) -> str:
    """That points are shown of networks that are not judged."""
    number = len(population.missed)
    return f"{number} of them are not judged. " if number and not population.mostly_missed else ""


def bound(population: Population) -> Section | None:
    """The bound against the gap it is to hold for; None where it was not measured."""
    pairs = [
        (row[BOUND], row["gap"])
        for row in population.done
        if row.get(BOUND) is not None and math.isfinite(row.get("gap", math.nan))
    ]
    plotted = [(value, gap) for value, gap in pairs if math.isfinite(value)]
    if not plotted:
        return None
    above = sum(value >= gap for value, gap in pairs if not math.isnan(value))
    infinite = sum(value == math.inf for value, _ in pairs)
    times = quartiles([value / gap for value, gap in plotted if gap > 0] or [math.nan])[2]
    sentences = [
        f"The bound lies at or above the gap in {above} of {len(pairs)} runs; in {infinite} of "
        "them it is infinite and not drawn."
        + ("" if times is None else f" In the median it is {times:.3g} times the gap."),
        "A bound that holds may still say nothing: one far above the largest possible loss is "
        "vacuous. Its card says what it assumes and leaves out.",
    ]
    data = {
        **_points(population, [BOUND], ["gap"]),
        "pairs": [[_pair(population, BOUND, "gap", {})]],
        "chosen": {
            "measure": 0,
            "target": 0,
            "scale": "log" if all(v > 0 and g > 0 for v, g in plotted) else "linear",
        },
        "identity": "bound = gap",
    }
    rows = [
        [row["run"], rounded(row[BOUND]), rounded(row["gap"])]
        for row in population.done
        if row.get(BOUND) is not None and "gap" in row
    ]
    columns = [Column("run"), Column("bound"), Column("gap", TARGETS["gap"])]
    values = Table(columns, rows, id="bound-values", title="Bound and gap of every run")
    caption = f"n = {len(plotted)} runs. Where the bound holds, a point lies right of the line."
    chart = Chart("bound", "Bound against gap", "scatter", data, values, caption)
    return Section("bound-section", "The bound against the gap", [Text(sentences), chart])


def _points(
    population: Population, measures: Sequence[str], targets: Sequence[str]
) -> dict[str, Any]:
    """Columns of numbers, each once, whatever the views show of them."""
    rows = population.done

    def column(name: str) -> dict[str, Any]:
        values = [rounded(row.get(name)) for row in rows]
        return {"name": name, "title": title(name), "values": values}

    settings = _whole_settings(population)
    for axis in population.varied:
        labels = list(population.groups(axis))
        places = {text: i for i, text in enumerate(labels)}
        index = [places[label(row[axis])] for row in rows]
        settings.append({"name": axis, "labels": labels, "index": index})
    return {
        "runs": [row["run"] for row in rows],
        "settings": settings,
        "measures": [column(name) for name in measures],
        "targets": [column(name) for name in targets],
    }


def _whole_settings(population: Population) -> list[dict[str, Any]]:
    """Runs by everything that is varied but the seed; nothing if that is one axis or none."""
    axes = [axis for axis in population.varied if axis != "seed"]
    if len(axes) < 2:
        return []
    names = [", ".join(label(row[axis]) for axis in axes) for row in population.done]
    labels = list(dict.fromkeys(names))
    if not 1 < len(labels) <= MOST_COLOURS:
        return []
    places = {text: i for i, text in enumerate(labels)}
    index = [places[name] for name in names]
    return [{"name": ", ".join(axes), "labels": labels, "index": index}]


def _pair(
    population: Population, measure: str, target: str, associated: Associations
) -> dict[str, Any]:
    """What is said below the picture of one pair, and the two lines through it."""
    rows = population.ended
    values, outcome = [row.get(measure) for row in rows], [row.get(target) for row in rows]
    straight = regression(values, outcome)
    pair: dict[str, Any] = {
        "text": _words(straight.spearman, associated.get(measure)),
        "line": _line(straight),
        "line_text": _line_words(straight, measure, target),
    }
    if all(value > 0 for value in finite(rows, measure)):
        logarithmic = regression(values, outcome, log=True)
        pair["log_line"] = _line(logarithmic)
        pair["log_line_text"] = _line_words(logarithmic, f"ln({measure})", target)
    return pair


def _words(rho: Correlation, found: Association | None) -> str:
    """What judges the pair; where nothing does, how many points there are."""
    if found is not None and (cell := found.judged.cell) is not None:
        judged = found.judged
        p = "" if math.isnan(found.p) else f"; {chance(found.p)} after Holm's correction"
        return f"Spearman's ρ = {cell}{p}, n = {judged.n}."
    counted = f"n = {rho.n}, {rho.excluded} left out"
    if math.isnan(rho.value):
        return f"Spearman's ρ is not defined: {rho.reason} ({counted})."
    return f"{counted}."


def _line(fit: Regression) -> list[float] | None:
    if math.isnan(fit.slope) or not math.isfinite(fit.intercept):
        return None
    return [fit.slope, fit.intercept]


def _line_words(fit: Regression, measure: str, target: str) -> str:
    if math.isnan(fit.slope):
        return f"No line: {fit.reason}."
    return (
        f"Line by least squares: {target} ≈ {short(fit.intercept)} + ({short(fit.slope)}) · "
        f"{measure}, R² = {fit.r_squared:.2f}, n = {fit.n}."
    )


def _values(population: Population, measures: Sequence[str], targets: Sequence[str]) -> Table:
    """Every number of the picture, or one row per measure where these would be too many to read."""
    wanted = [*population.varied, *targets, *measures]
    if len(population.done) * len(wanted) > MOST_CELLS:
        return _summed_up(population, [*targets, *measures])
    rows: list[list[Cell]] = [
        [
            row["run"],
            *(setting(row[axis]) for axis in population.varied),
            *(rounded(row.get(name)) for name in (*targets, *measures)),
        ]
        for row in population.done
    ]
    columns = [Column("run"), *(Column(name, TARGETS.get(name, "")) for name in wanted)]
    return Table(columns, rows, id="scatter-values", title="The points")


def _summed_up(population: Population, names: Sequence[str]) -> Table:
    rows: list[list[Cell]] = []
    for name in names:
        values = finite(population.done, name)
        if values:
            rows.append([name, len(values), *quartiles(values)])
    columns = ("measure or outcome", "n", "smallest", "quarter", "median", "3 quarters", "largest")
    return Table(
        list(map(Column, columns)),
        rows,
        id="scatter-values",
        title="The points, summed up",
        caption=f"{len(population.done)} runs are too many to list with every measure: "
        "to get all numbers as tables: spiritlevel study export FOLDER",
    )


def outcomes(said: StudyAnswer) -> Section | None:
    """Panels side by side, one for each outcome; the strongest measure stands on top."""
    if said.best is None:
        return None
    first = next(iter(said.outcomes.values()))
    names = sorted(first, key=lambda name: strength(first[name]), reverse=True)
    words = {outcome: in_words(outcome) for outcome in said.outcomes}
    panels = [
        _panel(words[outcome], [found.get(name) for name in names])
        for outcome, found in said.outcomes.items()
    ]
    columns = [Column("measure")]
    for word in words.values():
        columns += [Column(f"ρ, {word}"), Column(f"p, {word}", "After Holm's correction")]
    rows: list[list[Cell]] = [
        [name, *(cell for found in said.outcomes.values() for cell in _cells(found.get(name)))]
        for name in names
    ]
    caption = (
        "Spearman's ρ: a rank correlation, from −1 to 1 (0: unrelated). Lines are intervals, the "
        "widest of those that count what networks share; full circles are clear after Holm's "
        "correction."
    )
    table = Table(columns, rows, id="outcomes-values", title="Every measure with each outcome")
    data: dict[str, Any] = {"rows": names, "panels": panels}
    title = "Every measure with each outcome"
    chart = Chart("outcomes", title, "forest", data, table, caption)
    return Section("outcomes-section", "What the measures say", [chart])


def _panel(title: str, column: list[Association | None]) -> dict[str, Any]:
    cells = [None if found is None else found.judged.cell for found in column]
    return {
        "title": title,
        "values": [None if cell is None else rounded(cell.value) for cell in cells],
        "low": [None if cell is None else rounded(cell.low) for cell in cells],
        "high": [None if cell is None else rounded(cell.high) for cell in cells],
        "clear": [found is not None and found.is_clear for found in column],
        "notes": ["" if found is None else _note(found) for found in column],
    }


def _note(found: Association) -> str:
    cell = found.judged.cell
    if cell is None or math.isnan(found.p):
        return f"{'' if cell is None else f'ρ = {cell}, '}{found.judged.reason}"
    p = f"{chance(found.p)} after Holm's correction"
    return f"ρ = {cell}, {p}, n = {found.judged.n}; {found.judged.counted}"


def _cells(found: Association | None) -> tuple[Cell, Cell]:
    return (None, None) if found is None else (found.judged.cell, rounded(found.p, 2))
