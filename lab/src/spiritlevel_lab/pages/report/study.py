"""The page of a study: what its population says about the gap, and how surely."""

from __future__ import annotations

import dataclasses

from spiritlevel.measures import names
from spiritlevel.records.content import Cards, Cell, Column, Page, Part, Section, Table, Text
from spiritlevel.results import Progress

from ...population import population_statistics
from ...population.outcome_names import TARGETS
from ...population.population import Population, label
from ...population.registry import SECTIONS, registered_task
from ...population.runs.outcomes import DIVERGED
from ...population.settings.definition import Study, place
from ...population.settings.networks import axes_of
from ...population.storage.store import Store
from ...statistics import StudyStatistics
from ...statistics.tables import coefficients_table, lines_table, others_table, rounded
from ...statistics.text import if_independent
from ..study_answer import StudyAnswer, answer, in_words
from ..study_sections import leading_sections
from . import (
    study_figures,
    study_pairs,
)
from .study_words import machines, named, setting, title

TITLE = "do the measures say how well the networks generalize?"
DEFAULTS = {field.name: field.default for field in dataclasses.fields(Study)}


def page_of(
    store: Store,
    *,
    target: str = "gap",
    population: Population | None = None,
    statistics: StudyStatistics | None = None,
    said: StudyAnswer | None = None,
    progress: Progress | None = None,
) -> Page:
    """The page of a study, finished or not; a study without a finished run is refused.

    Args:
        store: of the study.
        target: what the measures are judged by: an outcome, or a measure of the study.
        population: of the same store, where it was read already.
        statistics: for this target, where they were computed already.
        said: what these say, where it is known already.
        progress: called as progress(done, total, what), once the statistics are there.
    """
    study = store.study
    population = Population.of(store) if population is None else population
    if statistics is None:
        statistics = population_statistics.statistics(population, target=target)
    said = answer(population, statistics, target) if said is None else said
    leading = leading_sections(study, population.rows)
    outcomes, pairs = study_pairs.outcomes(said), None
    if outcomes is not None and leading is not None:  # which come first: they are what was asked
        sentences = [said.found, *said.sentences]
        outcomes = dataclasses.replace(outcomes, parts=[Text(sentences), *outcomes.parts])
    if said.best is not None:
        pairs = study_pairs.scatter(population, target, said, progress)
    parts = [
        *([] if leading is None else leading.sections),
        outcomes,
        _missing(population),
        correlations(statistics, target),
        pairs,
        study_pairs.bound(population),
        study_figures.dynamics(population),
        study_figures.boxes(population),
        study_figures.layers(population),
        study_figures.heatmap(population),
        independent(statistics, target),
        runs(population),
        _cards(population),
    ]
    return Page(
        title=f"{study.name}: {TITLE if leading is None else leading.title}",
        lead=said.found if leading is None else leading.lead,
        facts={},
        sections=[section for section in parts if section is not None],
        highlights=said.sentences if leading is None else [],
        settings=_facts(study, population, statistics, target),
    )


def _facts(
    study: Study, population: Population, statistics: StudyStatistics, target: str
) -> dict[str, str]:
    counts = population.counts
    states = {name: getattr(counts, name) for name in ("done", "failed", "running", "pending")}
    varied = study.grid or axes_of(study.networks)
    grid = {axis: ", ".join(map(label, values)) for axis, values in varied.items()}
    versions = {
        f"{name} {each[name]}": None
        for each in population.machines.values()
        for name in ("spiritlevel", "torch", "python")
        if name in each
    }
    facts = {
        "study": study.name,
        "about": study.description,
        "runs": ", ".join(f"{number} {name}" for name, number in states.items() if number),
        "n": f"{statistics.n - statistics.without_target} runs with a finite {target} are judged",
        "judged by": title(target),
        **subject(study),
        "settings" if study.networks else "grid": "; ".join(
            f"{axis}: {values}" for axis, values in grid.items()
        ),
        "variants": "; ".join(study.variants),
        **({} if study.networks else {"seeds": _seeds(study)}),
        "measured with": _measured_with(study),
        "machines": machines(population.machines.values()),
        "versions": ", ".join(versions),
    }
    return {name: value for name, value in facts.items() if value}


def _measured_with(study: Study) -> str:
    """What a reader must know of the numbers: how many samples, and of which layers they are."""
    asked = {**study.measure_options, **(study.measure_options.get("options") or {})}
    asked.pop("options", None)
    if asked.get("samples", 0) is None:
        asked["samples"] = "all"
    return ", ".join(f"{name}: {label(value)}" for name, value in asked.items())


def _seeds(study: Study) -> str:
    return str(len(list(study.seeds)) if not isinstance(study.seeds, int) else study.seeds)


def _missing(population: Population) -> Section | None:
    """Runs that are not judged or not shown, and why."""
    counts = population.counts
    diverged = sum(row["outcome"] == DIVERGED for row in population.done)
    said = []
    if counts.remaining:
        said.append(
            f"Runs that are not finished: {counts.remaining} of {counts.total}. This is not the "
            "whole study; continue it with: spiritlevel study resume FOLDER"
        )
    if counts.failed:
        said.append(
            f"Runs that failed: {counts.failed}. They have no numbers; their errors are listed "
            "below, under Runs."
        )
    if diverged:
        said.append(
            f"Runs that diverged: {diverged}. Their loss is not a number, and nothing was measured."
        )
    return Section("missing", "What is missing", [Text(said, bullets=True)]) if said else None


def _cards(population: Population) -> Section | None:
    """The cards of all measures but a user's own, which may not be installed here."""
    catalogue = set(names())
    with_cards = [name for name in population.measures if name in catalogue]
    return (
        Section("cards", "The measures", [Cards(with_cards)], folded=True) if with_cards else None
    )


def subject(study: Study) -> dict[str, str]:
    """Model and data by section; without those that no run looks at.

    >>> subject(Study("mine")), subject(Study("drawn", task="tasks_class_separation"))
    ({'model': 'mlp', 'data': 'digits'}, {})
    """
    tasks = {run.task.name if run.task else "" for run in study.runs()}
    used = {section for task in tasks for section in _used(study, task)}
    return {name: named(getattr(study, name)) for name in SECTIONS if name in used}


def _used(study: Study, task: str) -> tuple[str, ...]:
    """What runs with this task look at; "" is training and measuring, which need both."""
    if not task:
        return SECTIONS
    registered = registered_task(task)
    if registered is not None:
        return registered.uses
    # Somebody's own task, which may not be on this machine: what its study says itself.
    varied = {place(key)[0] for key in study.grid}
    varied |= {place(key)[0] for changes in study.variants.values() for key in changes}
    return tuple(n for n in SECTIONS if n in varied or getattr(study, n) != DEFAULTS[n])


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
            *(rounded(row.get(name)) for name in outcomes),
            rounded(row["seconds"]),
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


def correlations(statistics: StudyStatistics, target: str) -> Section | None:
    """The number that judges each measure, with what weakens it; the strongest come first."""
    if not statistics.measures:
        return None
    judged = statistics.judged(in_words(target))
    judged = dataclasses.replace(judged, caption=f"{title(target)}. {judged.caption}")
    notes = Text(statistics.notes(), bullets=True)
    parts: list[Part] = [judged, notes, others_table(statistics.rows)]
    return Section("correlations-section", "What it rests on", parts)


def independent(statistics: StudyStatistics, target: str) -> Section | None:
    """All intervals and p that take the runs as independent, folded up."""
    if not statistics.measures:
        return None
    said = Text([if_independent(statistics)])
    parts: list[Part] = [
        said,
        coefficients_table(statistics.rows),
        lines_table(statistics.rows, target),
    ]
    return Section("independent-section", "If all runs were independent", parts, folded=True)
