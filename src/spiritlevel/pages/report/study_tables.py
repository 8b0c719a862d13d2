"""The tables of a study: lines through the points, runs, failures."""

from __future__ import annotations

from ...content import Cell, Column, Section, Table
from ...study.population import TARGETS, Population
from ...study.statistics import StudyStatistics
from .study_numbers import number, setting

TRAINED = (  # of runs that train
    Column("ended by", "Why training ended: epochs, a loss or an accuracy reached, diverged"),
    Column("epochs"),
)
OUT = Column("out", "Left out: runs without a finite number for this measure or for the outcome")


def regressions(statistics: StudyStatistics, target: str) -> Section | None:
    """The rows of Table 3 of Taleghani et al., a line for each measure."""
    if not statistics.measures:
        return None
    titles = {
        "slope": f"Of {target} ≈ slope · measure + intercept, by least squares",
        "intercept": "",
        "p (slope)": "",
        "stderr (slope)": "Standard error",
        "R²": "Share of the outcome's variance that the line explains",
        "n": "",
    }
    columns = [Column("measure"), *(Column(title, text) for title, text in titles.items()), OUT]
    rows: list[list[Cell]] = []
    for name, row in statistics.measures.items():
        line = row.regression
        values = (line.slope, line.intercept, line.p_slope, line.slope_stderr, line.r_squared)
        rows.append([name, *map(number, values), line.n, line.excluded])
    caption = (
        f"A straight line for each measure, {target} against measure, as in Table 3 of Taleghani "
        "et al.; p before any correction. Its correlations are in the tables above."
    )
    lines = Table(
        columns, rows, id="regressions", title="Lines through the points", caption=caption
    )
    return Section("regressions-section", "Regression", [lines])


def runs(population: Population) -> Section:
    """Every run, and why some have no numbers."""
    outcomes = [
        name
        for name in (*population.targets, "train_loss")
        if any(name in r for r in population.rows)
    ]
    trained = population.outcomes is None  # and not given as they are
    several = len(population.machines) > 1
    columns = [
        Column("run", "Hash of its settings: the name of its checkpoint"),
        *([] if trained else [Column("network", "As the table or the folder calls it")]),
        Column("state"),
        *(Column(axis) for axis in population.varied),
        *(TRAINED if trained else ()),
        *(Column(name, _meaning(name, trained=trained)) for name in outcomes),
        Column("seconds", f"Spent on {'training and ' if trained else ''}measuring"),
        *([Column("machine", "Number in the list of machines")] if several else []),
    ]
    rows: list[list[Cell]] = [
        [
            row["run"],
            *([] if trained else [row["network"]]),
            row["status"],
            *(setting(row[axis]) for axis in population.varied),
            *([row["outcome"], row.get("epoch")] if trained else []),
            *(number(row.get(name)) for name in outcomes),
            number(row["seconds"]),
            *([row["machine"]] if several else []),
        ]
        for row in population.rows
    ]
    parts: list[Table] = [Table(columns, rows, id="runs", title=f"All {len(rows)} runs")]
    if failures := _failures(population):
        parts.insert(0, failures)
    return Section("runs-section", "Runs", parts)


def _meaning(name: str, *, trained: bool) -> str:
    return TARGETS.get(name, "At the last epoch" if trained else "")


def _failures(population: Population) -> Table | None:
    failed = [row for row in population.rows if row["status"] == "failed"]
    if not failed:
        return None
    columns = [Column("run"), *map(Column, population.varied), Column("attempts"), Column("error")]
    rows: list[list[Cell]] = [
        [
            row["run"],
            *(setting(row[axis]) for axis in population.varied),
            row["attempt"],
            row["error"],
        ]
        for row in failed
    ]
    caption = "Try them again with: spiritlevel study resume FOLDER"
    return Table(columns, rows, id="failures", title="Runs that failed", caption=caption)
