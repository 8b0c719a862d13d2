"""The outcome of an experiment by its trained networks alone, or why they cannot decide."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from .experiment import Experiment, Outcome, Row, titled
from .rows import converged
from .trained import NotAsked, Split, TrainedWhen

TITLE = "With the networks that were left out"


def judged(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """What the runs say about the claim. Networks that are not trained are never judged.

    If too few are trained, the numbers of all are shown and no part of the claim is judged.
    """
    trained = experiment.trained
    if isinstance(trained, NotAsked):
        return experiment.analyse(rows)
    split = trained.split(rows)
    if split.short:
        return _unjudged(experiment.analyse(converged(rows)), trained, split)
    outcome = experiment.analyse(split.judged)
    if not split.left_out:
        return outcome
    return dataclasses.replace(
        outcome,
        left_out=f"{_count(split)} left out: trained means {trained} Trained are {split}.",
        more=[
            *outcome.more,
            titled(
                TITLE,
                "The same numbers over all runs that did not diverge, trained or not. Shown, not "
                "judged.",
                experiment.analyse(converged(rows)).table,
            ),
        ],
    )


def _unjudged(outcome: Outcome, trained: TrainedWhen, split: Split) -> Outcome:
    needs = f"{split.needed}{' in each group' if trained.by else ''}"
    return dataclasses.replace(
        outcome,
        findings=[dataclasses.replace(each, result="not judged") for each in outcome.findings],
        agrees="untrained",
        conclusion=(
            f"Too few of the networks are trained: {split}, where {needs} are needed. The claim is "
            "about trained networks, so these runs can neither support nor refute it; the numbers "
            "below are of all of them and are not judged."
        ),
        why="",
        left_out=f"Trained means {trained}",
    )


def _count(split: Split) -> str:
    number = len(split.left_out)
    diverged = number - len(converged(split.left_out))
    also = f", of which {diverged} diverged," if diverged else ""
    return f"{number} run{'' if number == 1 else 's'}{also} {'is' if number == 1 else 'are'}"
