"""The tables of a study: runs, failures."""

from __future__ import annotations

from spiritlevel.records.content import Cell, Column, Section, Table

from ...population.outcome_names import TARGETS
from ...population.population import Population
from .study_words import number, setting

TRAINED = (  # of runs that train
    Column("ended by", "Why training ended: epochs, a loss or an accuracy reached, diverged"),
    Column("epochs"),
)


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
    return Section("runs-section", "Runs", parts, folded=True)


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
