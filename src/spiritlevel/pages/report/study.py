"""The page of a study: what its population says about the gap, and how surely."""

from __future__ import annotations

import dataclasses
import math

from ...measures import names
from ...results import Progress
from ...study import table
from ...study.statistics import MeasureStatistics, StudyStatistics
from ...study.statistics.correlations import FINDINGS
from ...study.statistics.text import percent
from ...study.storage.store import Store
from . import study_experiment, study_figures, study_pairs, study_tables, study_training
from .parts import Cards, Page, Section, Text
from .study_judgement import judge
from .study_population import Population, label, read
from .study_subject import subject
from .study_words import chance, coefficient, machines, title


def page_of(
    store: Store,
    *,
    target: str = "gap",
    resamples: int = 2000,
    found: StudyStatistics | None = None,
    progress: Progress | None = None,
) -> Page:
    """The page of a study, finished or not; a study without a finished run is refused.

    Args:
        store: of the study.
        target: what the measures are judged by: an outcome, or a measure of the study.
        resamples: of the bootstrap, for this target; 0 leaves it out.
        found: the statistics for this target where they are there already, with their bootstrap.
        progress: called with (measures done, measures in all, a measure's name), once the
            statistics are there.
    """
    if found is None:
        found = table.statistics(store, target=target, resamples=resamples)
    population = read(store)
    best = _surest(found)
    judged = judge(population.study, population.rows)
    lead, pairs = _lead(found, best, target), None
    if best is not None:
        pairs = study_pairs.scatter(population, target, found, best.name, progress)
    if judged is not None and pairs is not None:  # the claim leads: it is what was asked
        pairs = dataclasses.replace(pairs, parts=[Text([lead]), *pairs.parts])
    parts = [
        None if judged is None else study_experiment.experiment(judged),
        _missing(population),
        pairs,
        study_tables.correlations(found, target),
        study_tables.regressions(found, target),
        study_figures.heatmap(population),
        study_training.dynamics(population),
        study_figures.boxes(population),
        study_figures.layers(population),
        study_pairs.bound(population),
        study_tables.runs(population),
        _cards(population),
    ]
    return Page(
        title=f"{population.study.name}: "
        + (f"what the measures say about the {target}" if judged is None else judged.title),
        lead=lead if judged is None else f"The claim: {judged.verdict}. {judged.conclusion}",
        facts=_facts(population, found, target),
        sections=[section for section in parts if section is not None],
    )


def _surest(found: StudyStatistics) -> MeasureStatistics | None:
    """A finding if there is one; the smallest corrected p, then the largest |ρ|."""

    def doubt(row: MeasureStatistics) -> tuple[bool, float, float]:
        p = row.holm.get("spearman")
        size = 0.0 if p is None else -abs(row.spearman.value)
        return not row.verdict.startswith(FINDINGS), 2.0 if p is None else p, size

    return min(found.measures.values(), key=doubt, default=None)


def _lead(found: StudyStatistics, best: MeasureStatistics | None, target: str) -> str:
    """The finding with what takes it away, or that there is none."""
    if best is None:
        return "No run of this study was measured: nothing can be said about the measures."
    n, tests = best.spearman.n, found.holm["spearman"].num_tests
    over = f"Over {n} runs"
    if not tests:
        return f"{over} no measure can be compared with the {target}: {best.spearman.reason}."
    num = "1 measure" if tests == 1 else f"{tests} measures"
    rho = f"Spearman's ρ = {coefficient(best.spearman)}, n = {n}"
    p = chance(best.holm["spearman"])
    if not best.verdict.startswith(FINDINGS):
        return (
            f"{over} no measure can be said to go with the {target}. {best.name} comes nearest: "
            f"{rho}, {p} after Holm's correction for {num}: {best.verdict}."
        )
    direction = "rises" if best.spearman.value > 0 else "falls"
    words = (
        f"{over} {best.name} goes with the {target} most surely: it {direction} as the {target} "
        f"rises, {rho}. That survives Holm's correction for {num} ({p})"
    )
    if best.partial_spearman is None:
        return f"{words}; no confounder was measured that it could be held against."
    held = ", ".join(best.partial_spearman.given) or "the confounders"
    given = coefficient(best.partial_spearman)
    if best.verdict.endswith("also given the confounders"):
        return f"{words} and holding {held} fixed (ρ = {given})."
    if "turns round" in best.verdict:
        return f"{words}, but it turns round when {held} are held fixed (ρ = {given})."
    return f"{words}, but not holding {held} fixed: there it cannot be told (ρ = {given})."


def _facts(population: Population, found: StudyStatistics, target: str) -> dict[str, str]:
    study, counts = population.study, population.counts
    states = {name: getattr(counts, name) for name in ("done", "failed", "running", "pending")}
    grid = {axis: ", ".join(map(label, values)) for axis, values in study.grid.items()}
    versions = {
        f"{name} {each[name]}": None
        for each in population.machines
        for name in ("spiritlevel", "torch", "python")
        if name in each
    }
    resampled = {
        row.bootstrap["spearman"].interval_method
        for row in found.measures.values()
        if row.bootstrap and not math.isnan(row.spearman.value)
    }
    facts = {
        "study": study.name,
        "about": study.description,
        "runs": ", ".join(f"{number} {name}" for name, number in states.items() if number),
        "n": f"{found.n - found.without_target} runs with a finite {target}",
        "judged by": title(target),
        **subject(study),
        "grid": "; ".join(f"{axis}: {values}" for axis, values in grid.items()),
        "variants": ", ".join(study.variants),
        "seeds": str(len(list(study.seeds)) if not isinstance(study.seeds, int) else study.seeds),
        "intervals": "; ".join([f"{percent(found.confidence)}, by formula", *sorted(resampled)]),
        "machines": machines(population.machines),
        "versions": ", ".join(versions),
    }
    return {name: value for name, value in facts.items() if value}


def _missing(population: Population) -> Section | None:
    """What the page cannot show, said first."""
    counts = population.counts
    diverged = sum(row["outcome"] == "diverged" for row in population.done)
    said = []
    if counts.remaining:
        said.append(
            f"Runs that are not finished: {counts.remaining} of {counts.total}. This is not the "
            "whole study; it is continued by: spiritlevel study resume FOLDER"
        )
    if counts.failed:
        said.append(
            f"Runs that failed: {counts.failed}. They have no numbers; their errors stand below, "
            "under Runs."
        )
    if diverged:
        said.append(
            f"Runs that diverged: {diverged}. Their loss is not a number, and nothing was measured."
        )
    return Section("missing", "What is missing", [Text(said, bullets=True)]) if said else None


def _cards(population: Population) -> Section | None:
    """A measure of somebody's own may be unknown where the page is made."""
    known = set(names())
    held = [name for name in population.measures if name in known]
    return Section("cards", "The measures", [Cards(held)]) if held else None
