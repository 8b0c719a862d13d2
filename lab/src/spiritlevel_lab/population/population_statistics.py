"""What the measures of a study say about its outcome, over all runs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from spiritlevel.ground.errors import SpiritlevelError, brief, suggestion
from spiritlevel.measures.confounders import HELD_FIXED

from ..statistics import (
    Associations,
    Judged,
    Preflight,
    StudyStatistics,
    associated,
    associations,
    summary,
)
from ..statistics import preflight as of_design
from .outcome_names import SIDE_BY_SIDE
from .population import Population
from .settings.definition import Study
from .storage.store import Store

# What a measure may merely repeat: how far training went, how certain and how large the network is.
CONFOUNDERS = HELD_FIXED
BOOKKEEPING = ("seed", "attempt", "seconds", "machine")  # numbers, but none a measure could repeat
NOT_JUDGED = "not judged: most networks did not come to what the study asks of training"
SHARES = ("error_gap", "test_error")  # means of a loss that lies between 0 and 1


def statistics(
    study: Store | Population,
    *,
    target: str = "gap",
    confounders: Sequence[str] | None = None,
    confidence: float = 0.95,
) -> StudyStatistics:
    """What each measure says about the target. Runs that failed are counted as left out.

    Args:
        study: its store, or the population read from it.
        target: "gap" (test − training loss), "error_gap", "test_loss" or "test_error"; one of
            the outcomes that came with given networks; or one of the study's own measures.
        confounders: measures, columns of the last epoch, or settings that are numbers. None: those
            of `CONFOUNDERS` that the study has and that differ between runs.
        confidence: of the intervals.
    """
    population = Population.of(study)
    _check_target(population, target)
    if not population.done:
        raise SpiritlevelError(
            f"The study in {population.folder!r} has no finished run yet: there is nothing to "
            f"report. See `spiritlevel study status {population.folder}`."
        )
    judged = population.judged
    if confounders is None:
        fixed = [name for name in CONFOUNDERS if name != target and _varies(judged, name)]
    else:
        fixed = list(dict.fromkeys(confounders))
        _check_confounders(fixed, target, judged)
    tests = {row["num_test"] for row in judged if row["num_test"]}
    found = summary(
        _rows(population, target, fixed),
        confidence=confidence,
        # Hoeffding's weights need a bounded loss and one number of test examples.
        num_test=tests.pop() if target in SHARES and len(tests) == 1 else None,
    )
    measures = found.measures
    if population.mostly_missed:
        measures = {n: dataclasses.replace(m, verdict=NOT_JUDGED) for n, m in measures.items()}
    return dataclasses.replace(found, measures=measures, not_judged=population.not_judged)


def side_by_side(
    study: Store | Population, statistics: StudyStatistics, target: str
) -> dict[str, Associations]:
    """By outcome, every measure with it: the target, then others of `SIDE_BY_SIDE` that are known.

    Args:
        study: its store, or the population read from it.
        statistics: those of the study for `target`.
        target: what these are of.
    """
    population = Population.of(study)
    known = [name for name in SIDE_BY_SIDE if any(name in row for row in population.done)]
    found: dict[str, Associations] = {}
    for name in dict.fromkeys([target, *known]):
        if name == target:
            found[name] = associations(statistics)
            continue
        of_outcome = associated(_rows(population, name), confidence=statistics.confidence)
        if population.mostly_missed:
            of_outcome = {m: a.unjudged() for m, a in of_outcome.items()}
        found[name] = of_outcome
    return found


def judged_pair(study: Store | Population, measure: str, target: str) -> Judged:
    """Spearman's ρ of one measure with one target, with the interval and the p that judge it."""
    population = dataclasses.replace(Population.of(study), measures=[measure])
    return associated(_rows(population, target))[measure].judged


def _rows(population: Population, target: str, fixed: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The runs that measures are judged by, as `summary` takes them."""
    names = population.measures
    return [
        {
            "settings": {key: row[key] for key in (*population.axes, "seed")},
            "measures": {n: row[n] for n in names if n in row and n != target},
            "target": row.get(target),
            "confounders": {name: row.get(name) for name in fixed},
            "errors": {
                name: population.errors[name].get(row["run"])
                for name in fixed
                if name in population.errors
            },
        }
        for row in population.judged
    ]


def preflight(study: Study) -> Preflight:
    """Which true correlations the study could see, before it runs; by simulation of its design."""
    return of_design([{**run.axes, "seed": run.seed} for run in study.runs()])


def default_target(study: Store | Population) -> str:
    """What measures are judged by if no target is given: the gap, where networks were trained.

    Networks that were given have outcomes of their own: the gap if it is known, else the first. A
    task that trains none has numbers of its own; the first of them that differs between runs, by
    name.
    """
    population = Population.of(study)
    if population.outcomes is not None:
        return next(iter(population.targets), "gap")
    if population.epochs or not population.measures:
        return "gap"
    return next(filter(population.varies, population.measures), population.measures[0])


def other_targets(study: Store | Population, target: str) -> str:
    """Which other numbers of a task could be the target, as a sentence; "" where there are none."""
    population = Population.of(study)
    others = [name for name in population.measures if name != target and population.varies(name)]
    if population.outcomes is not None or population.epochs or not others:
        return ""
    return (
        f"The target is {target!r}, by name the first of the task's numbers that differ between "
        f"runs. Others, for --target: {', '.join(others)}."
    )


def _check_target(population: Population, target: str) -> None:
    names, targets = population.measures, population.targets
    if not targets:
        raise SpiritlevelError(
            f"The networks in {population.folder!r} were measured and nothing can be judged: no "
            "outcome is known of them. Add a column such as test_accuracy or gap to the table and "
            "call `spiritlevel study measure` again: what was measured is kept. Or measure them in "
            "another folder with --test DATA."
        )
    if target not in targets and target not in names:
        raise SpiritlevelError(
            f"The 'target' must be one of {', '.join(targets)}, or a measure of the study. "
            f"Got {brief(target)}.{suggestion(target, [*targets, *names])}"
        )
    trained_none = names and not population.epochs and population.outcomes is None
    if target in targets and target not in names and trained_none:
        raise SpiritlevelError(
            f"The study in {population.folder!r} trained no networks, so there is no {target!r}. "
            f"Choose one of its own numbers as the target: {', '.join(names)}."
        )


def _check_confounders(names: Sequence[str], target: str, rows: Sequence[dict[str, Any]]) -> None:
    keys = dict.fromkeys(key for row in rows for key in row if key not in BOOKKEEPING)
    numeric = [key for key in keys if key != target and _is_numeric(rows, key)]
    for name in names:
        if name == target:
            raise SpiritlevelError(
                f"The 'confounders' must be other columns than the target. Got {brief(name)}, "
                "which is the target: nothing would be left of it. Leave it out."
            )
        if name not in numeric:
            raise SpiritlevelError(
                "Each of the 'confounders' must be a column of numbers of this study: "
                f"{', '.join(numeric)}. Got {brief(name)}.{suggestion(name, numeric)}"
            )


def _is_numeric(rows: Sequence[dict[str, Any]], name: str) -> bool:
    values = [row[name] for row in rows if row.get(name) is not None]
    return bool(values) and all(type(value) in (int, float) for value in values)


def _varies(rows: Sequence[dict[str, Any]], name: str) -> bool:
    values = (row.get(name) for row in rows)
    return len({v for v in values if v is not None and math.isfinite(v)}) > 1
