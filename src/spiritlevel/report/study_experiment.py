"""The part of a study's page that a paper's experiment has: its claim, and what came out here."""

from __future__ import annotations

import dataclasses
import json
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .._core import SpiritlevelError
from ..data.catalogue import CATALOGUE
from ..experiments import experiment as plain
from ..experiments import registry
from ..experiments.experiment import Experiment, Outcome
from ..experiments.numbers import Estimate
from ..experiments.records import rows_of
from ..experiments.render import VERDICTS, beside, parts_of
from ..study import control
from ..study.definition import Study
from .markup import number
from .numbers import filled
from .parts import Cell, Column, Figure, Part, Section, Table, Text
from .study_population import Population, label
from .study_words import LINE

# What an analysis runs into where a group of runs, or a number of them, is not there.
INCOMPLETE = (ArithmeticError, LookupError, TypeError, ValueError, SpiritlevelError)
INTERVALS = (
    "The intervals are 95 % intervals over runs; a dash stands where n is too small for one."
)
Place = tuple[str, str]  # section and key of a study


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where a study's settings come from, as a store does not say which preset it was run with."""

    preset: str | None  # of the library's study; None: the settings are none of those
    files: Mapping[Place, str]  # data of the user's own, which are not compared
    lacks: Mapping[str, list[Any]]  # values that the study in the library varies and this one not


def experiment(population: Population) -> Section | None:
    """What the runs say about the paper's claim; None for a study that is no experiment."""
    if not population.done or population.study.name not in registry.names():
        return None
    found = registry.find(population.study.name)
    origin = _origin(population.study, found.scaled_down)
    try:
        outcome = found.analyse(rows_of(found, population.done))
    except INCOMPLETE as error:
        if origin.preset is not None and _complete(population):
            raise  # nothing is missing: the analysis itself is at fault
        heading, parts = "cannot be judged by these runs", _unsaid(population, origin, error)
    else:
        heading, parts = VERDICTS[outcome.agrees], _said(found, outcome)
        heading += ", so far" if population.counts.remaining else ""
    first = [f"{found.paper}, {found.source}: {found.title}.", f"The claim: {found.claim}"]
    done = Text([f"What was done: {found.set_up}", *_scale(found, origin), _count(population)])
    return Section(
        "experiment",
        f"The paper's claim: {heading}",
        [Text(first), *parts, done],
    )


def _said(found: Experiment, outcome: Outcome) -> list[Part]:
    parts: list[Part] = [
        Text([f"Here: {outcome.conclusion}", *([f"Why: {outcome.why}"] if outcome.why else [])]),
        _table(
            "experiment-findings",
            "The claim, part by part",
            _worded(parts_of(outcome.findings)),
            f"When it counts as reproduced: {found.rule}",
        ),
        _table("experiment-numbers", "The numbers", outcome.table, INTERVALS),
    ]
    if outcome.figure is not None:
        parts.append(_figure(found, outcome.figure))
    if found.paper_values:
        pairs = beside(found, outcome)
        parts.append(_table("experiment-beside", "Beside the paper's numbers", pairs, INTERVALS))
    return parts


def _unsaid(population: Population, origin: Origin, error: Exception) -> list[Part]:
    """What is missing, where it can be told; else what the analysis ran into."""
    missing = [
        f"No run is finished yet with {axis}: {', '.join(values)}."
        for axis, values in _unfinished(population).items()
    ]
    missing += [
        f"The study of this name in the library also has {axis}: {', '.join(map(label, values))}. "
        "This one has not."
        for axis, values in origin.lacks.items()
    ]
    if isinstance(error, SpiritlevelError) or not missing:
        kind = "" if isinstance(error, SpiritlevelError) else f"{type(error).__name__}: "
        missing.append(f"What the analysis ran into: {kind}{error}")
    said = "The runs that are there do not have all that the paper's claim is judged by."
    return [Text([said]), Text(missing, bullets=True)]


def _complete(population: Population) -> bool:
    """Every run was finished, and its training did not diverge."""
    return all(r["status"] == "done" and r["outcome"] != "diverged" for r in population.rows)


def _unfinished(population: Population) -> dict[str, list[str]]:
    """Of each setting, the values that no finished run has."""
    found: dict[str, list[str]] = {}
    for axis in population.study.axes:
        every = dict.fromkeys(label(row[axis]) for row in population.rows)
        done = {label(row[axis]) for row in population.done}
        values = [value for value in every if value not in done]
        if values:
            found[axis] = values
    return found


def _count(population: Population) -> str:
    counts = population.counts
    words = f"n = {counts.done} finished runs of {counts.total}."
    if counts.done < counts.total:
        words += (
            f" Left out: {counts.failed} that failed, {counts.remaining} that are not finished."
        )
    return words


def _worded(found: plain.Table) -> plain.Table:
    """With estimates as text: what was seen of the parts of a claim is not to be compared."""
    rows = [[str(c) if isinstance(c, Estimate) else c for c in row] for row in found.rows]
    return plain.Table(found.columns, rows)


def _table(identifier: str, title: str, found: plain.Table, caption: str) -> Table:
    """An estimate takes two columns, so that the table can be sorted by its value."""
    given = [[row[place] for row in found.rows] for place in range(len(found.columns))]
    estimated = [any(isinstance(cell, Estimate) for cell in cells) for cells in given]
    titles: list[str] = []
    columns: list[list[Cell]] = []
    for name, cells, is_estimate in zip(found.columns, given, estimated, strict=True):
        titles.append(name)
        columns.append([_value(cell) for cell in cells])
        if is_estimate:
            titles.append("95 % interval" if sum(estimated) == 1 else f"95 % of {name}")
            columns.append([_interval(cell) for cell in cells])
    rows = list(zip(*columns, strict=True))
    return Table(identifier, title, list(map(Column, titles)), rows, caption)


def _value(cell: plain.Cell) -> Cell:
    value = cell.value if isinstance(cell, Estimate) else cell
    return None if isinstance(value, float) and math.isnan(value) else value


def _interval(cell: plain.Cell) -> str | None:
    if not isinstance(cell, Estimate) or math.isnan(cell.low):
        return None
    return f"[{number(cell.low)}, {number(cell.high)}]"


def _figure(found: Experiment, drawn: plain.Figure) -> Figure:
    data = {
        "x_title": textwrap.wrap(drawn.x_label, LINE),
        "y_title": textwrap.wrap(drawn.y_label, LINE),
        "joined": not drawn.points,
        "log_x": drawn.log_x,
        "log_y": drawn.log_y,
        "series": [
            {"name": each.name, "x": each.x, "y": each.y, "low": each.low, "high": each.high}
            for each in drawn.series
        ],
    }
    rows: list[list[Cell]] = [
        [each.name, x, *(_value(_at(values, i)) for values in (each.y, each.low, each.high))]
        for each in drawn.series
        for i, x in enumerate(each.x)
    ]
    titles = ("line", drawn.x_label, drawn.y_label, "from", "to")
    table = Table("experiment-figure-values", "The points", *filled([*map(Column, titles)], rows))
    said = []
    if any(each.low is not None for each in drawn.series):
        said.append("Whiskers are 95 % intervals over runs.")
    if len(drawn.series) > 1:
        said.append("A click on a name in the legend hides its points.")
    title = found.title[:1].upper() + found.title[1:]
    return Figure("experiment-figure", title, "series", data, table, " ".join(said))


def _at(values: Sequence[float] | None, place: int) -> Any:
    return None if values is None else values[place]


def _scale(found: Experiment, origin: Origin) -> list[str]:
    """How far the runs are from the paper's."""
    if origin.preset is None:
        said = [
            "Changed by hand, or of another version: the settings are not those of the study of "
            "this name in the library, with any preset or none. How far they are from the paper's "
            "is not known here."
        ]
    else:
        preset = f"preset {origin.preset}" if origin.preset else "without a preset"
        said = [f"Scaled down ({preset}): {found.scaled_down[origin.preset]}"]
    if origin.files:
        names = ", ".join(origin.files.values())
        said.append(f"The data were given as {names}; what is in there was not compared.")
    return said


def _origin(study: Study, presets: Iterable[str]) -> Origin:
    library = control.find(study.name)
    known = {"": library} | {name: library.with_preset(name) for name in library.presets}
    files = {
        (section, key): value
        for section in ("data", "task")
        for key, value in _entries(getattr(study, section)).items()
        if _is_file(value)
    }
    own = _settings(study, files)
    equal = (name for name in presets if name in known and _settings(known[name], files) == own)
    preset = next(equal, None)
    lacks: dict[str, list[Any]] = {}
    if preset is None:
        ours, theirs = _varied(study), _varied(library)
        lacks = {axis: [v for v in theirs[axis] if v not in ours.get(axis, [])] for axis in theirs}
    return Origin(preset, files, {axis: values for axis, values in lacks.items() if values})


def _entries(section: str | Mapping[str, Any] | None) -> Mapping[str, Any]:
    return section if isinstance(section, Mapping) else {"name": section}


def _is_file(name: object) -> bool:
    """Data from a path of the user's own, which differs from machine to machine.

    >>> _is_file("mine.npz"), _is_file("mnist:/data/mnist"), _is_file("mnist"), _is_file(3)
    (True, True, False, False)
    """
    if not isinstance(name, str):
        return False
    kind, colon, _ = name.lower().partition(":")
    return kind.endswith(".npz") or (bool(colon) and kind in (*CATALOGUE, "folder"))


def _settings(study: Study, apart_from: Iterable[Place]) -> set[str]:
    """Of all runs, with what a definition leaves out: two ways to write the same are equal."""
    found = set()
    for run in study.runs():
        settings = run.to_dict()
        for section, key in apart_from:
            settings.get(section, {}).pop(key, None)
        found.add(json.dumps(settings, sort_keys=True))
    return found


def _varied(study: Study) -> dict[str, list[Any]]:
    return ({"variant": list(study.variants)} if study.variants else {}) | {
        axis: list(values) for axis, values in study.grid.items()
    }
