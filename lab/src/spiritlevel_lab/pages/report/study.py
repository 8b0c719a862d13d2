"""The page of a study: what its population says about the gap, and how surely."""

from __future__ import annotations

import dataclasses
import math

from spiritlevel.measures import names
from spiritlevel.records.content import Cards, Page, Section, Text
from spiritlevel.results import Progress

from ...population import population_statistics
from ...population.population import Population, label
from ...population.registry import SECTIONS, registered_task
from ...population.runs.outcomes import DIVERGED
from ...population.settings.definition import Study, place
from ...population.settings.networks import axes_of
from ...population.storage.store import Store
from ...statistics import MeasureStatistics, StudyStatistics
from ...statistics.correlations import FINDINGS
from ...statistics.text import JUDGED, percent
from ..study_sections import leading_sections
from . import study_correlations, study_figures, study_pairs, study_tables, study_training
from .study_words import chance, coefficient, machines, named, title

DEFAULTS = {field.name: field.default for field in dataclasses.fields(Study)}


def page_of(
    store: Store,
    *,
    target: str = "gap",
    resamples: int = 2000,
    population: Population | None = None,
    statistics: StudyStatistics | None = None,
    progress: Progress | None = None,
) -> Page:
    """The page of a study, finished or not; a study without a finished run is refused.

    Args:
        store: of the study.
        target: what the measures are judged by: an outcome, or a measure of the study.
        resamples: of the bootstrap, for this target; 0 leaves it out.
        population: of the same store, where it was read already.
        statistics: for this target, where they were computed already, with their bootstrap.
        progress: called as progress(done, total, what), once the statistics are there.
    """
    study = store.study
    population = Population.of(store) if population is None else population
    if statistics is None:
        statistics = population_statistics.statistics(
            population, target=target, resamples=resamples
        )
    best = _surest(statistics)
    leading = leading_sections(study, population.rows)
    lead, pairs = _lead(statistics, best, target), None
    if best is not None:
        pairs = study_pairs.scatter(population, target, statistics, best.name, progress)
    if leading is not None and pairs is not None:  # they come first: it is what was asked
        pairs = dataclasses.replace(pairs, parts=[Text([lead]), *pairs.parts])
    parts = [
        *([] if leading is None else leading.sections),
        _missing(population),
        pairs,
        study_correlations.correlations(statistics, target),
        study_tables.regressions(statistics, target),
        study_figures.heatmap(population),
        study_training.dynamics(population),
        study_figures.boxes(population),
        study_figures.layers(population),
        study_pairs.bound(population),
        study_tables.runs(population),
        _cards(population),
    ]
    return Page(
        title=f"{study.name}: "
        + (f"what the measures say about the {target}" if leading is None else leading.title),
        lead=lead if leading is None else leading.lead,
        facts=_facts(study, population, statistics, target),
        sections=[section for section in parts if section is not None],
    )


def _surest(statistics: StudyStatistics) -> MeasureStatistics | None:
    """A finding if there is one; the smallest corrected p, then the largest |ρ|."""

    def doubt(row: MeasureStatistics) -> tuple[bool, float, float]:
        p = row.holm.get(JUDGED)
        size = 0.0 if p is None else -abs(row.spearman.value)
        return not row.verdict.startswith(FINDINGS), 2.0 if p is None else p, size

    return min(statistics.measures.values(), key=doubt, default=None)


def _lead(statistics: StudyStatistics, best: MeasureStatistics | None, target: str) -> str:
    """The clearest finding and what weakens it, or that there is none."""
    if best is None:
        return "No run of this study was measured: nothing can be said about the measures."
    rank, tests = best.judged, statistics.holm[JUDGED].num_tests
    n = rank.n
    settings = statistics.settings
    over = f"Over {n} runs" + (f" of {settings} settings" if settings else "")
    if not tests:
        return f"{over} no measure can be compared with the {target}: {rank.reason}."
    num = "1 measure" if tests == 1 else f"{tests} measures"
    rho = f"Spearman's ρ = {coefficient(rank)}, n = {n}"
    p = chance(best.holm[JUDGED])
    caveat = best.levels["spearman"].caveat if best.levels else ""
    caveat = f" {caveat}".rstrip()
    if not best.verdict.startswith(FINDINGS):
        return (
            f"{over} no measure is clearly associated with the {target}. {best.name} comes "
            "closest: "
            f"{rho}, {p} after Holm's correction for {num}: {best.verdict}.{caveat}"
        )
    direction = "rises" if best.spearman.value > 0 else "falls"
    finding = (
        f"{over} {best.name} is associated with the {target} most clearly: it {direction} as the "
        f"{target} "
        f"rises, {rho}. That survives Holm's correction for {num} ({p})"
    )
    partial = best.partial_spearman
    if partial is None:
        return f"{finding}; no confounder was measured to check it against.{caveat}"
    confounders = ", ".join(partial.given) or "the confounders"
    given = coefficient(partial)
    if partial.verdict == rank.verdict:
        left = f"and holding {confounders} fixed (ρ = {given})"
    elif partial.verdict in FINDINGS:
        left = f"but its sign changes when {confounders} are held fixed (ρ = {given})"
    else:
        left = f"but with {confounders} held fixed there is no clear association (ρ = {given})"
    return f"{finding}{'' if left.startswith('and') else ','} {left}.{caveat}"


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
    resampled = {
        row.bootstrap["spearman"].interval_method
        for row in statistics.measures.values()
        if row.bootstrap and not math.isnan(row.spearman.value)
    }
    facts = {
        "study": study.name,
        "about": study.description,
        "runs": ", ".join(f"{number} {name}" for name, number in states.items() if number),
        "n": f"{statistics.n - statistics.without_target} runs with a finite {target}",
        "judged by": title(target),
        **subject(study),
        "settings" if study.networks else "grid": "; ".join(
            f"{axis}: {values}" for axis, values in grid.items()
        ),
        "variants": "; ".join(study.variants),
        **({} if study.networks else {"seeds": _seeds(study)}),
        "measured with": _measured_with(study),
        "intervals": "; ".join(
            [
                f"{percent(statistics.confidence)}, over runs by formula",
                *([f"over {statistics.settings} settings"] if statistics.settings else []),
                *sorted(resampled),
            ]
        ),
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
    """Runs that the page cannot show, and why."""
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
    return Section("cards", "The measures", [Cards(with_cards)]) if with_cards else None


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
