"""What the runs of a study say about a paper's claim, or why they cannot say it yet."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.inputs.data.catalogue import CATALOGUE

from ..claims.experiment import Experiment, Outcome, Row, Table, titled
from ..claims.population import outcomes_table
from ..claims.rows import converged, experiment_rows, missing_columns, with_outcomes
from ..claims.scale import at_the_papers_scale, library_study, verdict_in_words
from ..claims.trained import NotAsked, Split, TrainedWhen
from ..population.population import label
from ..population.runs.outcomes import DIVERGED
from ..population.settings.definition import Study
from ..statistics.tables import plain
from . import registry

TITLE = "With the networks that were left out"
# What an analysis runs into where a group of runs, or a number of them, is not there.
INCOMPLETE = (ArithmeticError, LookupError, TypeError, ValueError, SpiritlevelError)
UNJUDGED = "cannot be judged by these runs"
NOT_ENOUGH = "The runs that are there do not have all that the paper's claim is judged by."
SettingKey = tuple[str, str]  # section and key of a study
Rows = Sequence[Mapping[str, Any]]  # one per run, as `Population.rows` has them


def judged(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """What the runs say about the claim. Networks that are not trained are never judged.

    If too few are trained, the numbers of all are shown and no part of the claim is judged.
    """
    trained = experiment.trained
    if isinstance(trained, NotAsked):
        return _analysed(experiment, rows)
    split = trained.split(rows)
    if not split.is_judged:
        return _unjudged(_analysed(experiment, converged(rows)), trained, split)
    outcome = _analysed(experiment, split.judged)
    if not split.left_out:
        return outcome
    everyone = _shown(experiment, with_outcomes(converged(rows)))
    return dataclasses.replace(
        outcome,
        left_out=f"{_count(split)} left out: trained means {trained} Trained are {split}.",
        more=[
            *outcome.more,
            titled(
                TITLE,
                "The same numbers over all runs that did not diverge, trained or not. Shown, not "
                "judged.",
                everyone,
            ),
        ],
    )


def _shown(experiment: Experiment, rows: Sequence[Row]) -> Table:
    """The numbers of these runs: the three outcomes of a population, else those of the rule."""
    if not experiment.outcomes:
        return experiment.analyse(rows).table
    spec = {"settings": experiment.settings, **experiment.outcomes}
    return outcomes_table(rows, **spec)


def _analysed(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """By the experiment's rule, and for a population the three outcomes beside each other."""
    rows = with_outcomes(rows)
    outcome = experiment.analyse(rows)
    if not experiment.outcomes:
        return outcome
    return dataclasses.replace(outcome, outcomes=_shown(experiment, rows))


def _unjudged(outcome: Outcome, trained: TrainedWhen, split: Split) -> Outcome:
    needs = f"half of them and {split.needed}{' in each group' if trained.by else ''}"
    if trained.settings:
        needs += f", of {trained.settings} settings,"
    return dataclasses.replace(
        outcome,
        findings=[dataclasses.replace(each, result="not judged") for each in outcome.findings],
        agrees="untrained",
        conclusion=(
            f"Not judged: trained are {split}, where {needs} are needed. The "
            "claim is about trained networks, so these runs can neither support nor refute it; the "
            "numbers below are of all of them."
        ),
        met=split.met,
        why="",
        left_out=f"Trained means {trained}",
    )


def _count(split: Split) -> str:
    number = len(split.left_out)
    diverged = number - len(converged(split.left_out))
    also = f", of which {diverged} diverged," if diverged else ""
    return f"{number} run{'' if number == 1 else 's'}{also} {'is' if number == 1 else 'are'}"


@dataclasses.dataclass(frozen=True)
class Judgement:
    """A paper's experiment, with what came out of the runs that are there."""

    experiment: Experiment
    study: Study
    outcome: Outcome | None  # None: the claim cannot be judged by these runs
    missing: tuple[str, ...]  # what is not there yet
    scale: tuple[str, ...]  # how far the runs are from the paper's
    num_done: int
    num_failed: int
    num_remaining: int

    @property
    def verdict(self) -> str:
        """The verdict in a word or two."""
        if self.outcome is None:
            return UNJUDGED
        word = verdict_in_words(self.outcome.agrees, self.study)
        criterion = f": {self.outcome.met} met the criterion" if self.outcome.met else ""
        return word + criterion + (", so far" if self.num_remaining else "")

    @property
    def title(self) -> str:
        """What the claim is about, in a few words."""
        return self.experiment.title

    @property
    def source(self) -> str:
        """Where the claim is from, and what it is about."""
        return f"{self.experiment.paper}, {self.experiment.source}: {self.experiment.title}."

    @property
    def conclusion(self) -> str:
        """What came out, in a sentence."""
        return NOT_ENOUGH if self.outcome is None else self.outcome.conclusion

    @property
    def count(self) -> str:
        """How many runs it rests on, and how many are left out."""
        total = self.num_done + self.num_failed + self.num_remaining
        text = f"n = {self.num_done} finished runs of {total}."
        if self.num_done < total:
            text += (
                f" Left out: {self.num_failed} that failed, {self.num_remaining} that are not "
                "finished."
            )
        return text

    def to_dict(self) -> dict[str, Any]:
        """Plain types, ready for JSON."""
        experiment, outcome = self.experiment, self.outcome
        findings = [] if outcome is None else [plain(each) for each in outcome.findings]
        return {
            "name": experiment.name,
            "paper": experiment.paper,
            "source": experiment.source,
            "title": experiment.title,
            "claim": experiment.claim,
            "verdict": self.verdict,
            "conclusion": self.conclusion,
            "why": "" if outcome is None else outcome.why,
            "left_out": "" if outcome is None else outcome.left_out,
            "findings": findings,
            "missing": list(self.missing),
            "scale": list(self.scale),
            "done": self.num_done,
            "failed": self.num_failed,
            "remaining": self.num_remaining,
        }


def judge(study: Study, rows: Rows) -> list[Judgement]:
    """The paper's claims by these runs; none for a study of no experiment, or without a run yet.

    The experiment of the study's name comes first, then others that look at the same runs, if
    these have all that they look at.

    Args:
        study: whose name says which experiments it is for.
        rows: every run of it, as `Population.rows` has them.
    """
    done = [row for row in rows if row["status"] == "done"]
    if not done:
        return []
    return [
        _judgement(each, study, rows, done)
        for each in registry.of_study(study.name)
        if not each.rows_of or not missing_columns(each, done)
    ]


def _judgement(experiment: Experiment, study: Study, rows: Rows, done: Rows) -> Judgement:
    origin = _origin(study, experiment.scaled_down)
    missing = _unfinished(study, rows)
    outcome: Outcome | None = None
    experiment = experiment.at(origin.preset, comparable=at_the_papers_scale(study))
    try:
        outcome = judged(experiment, experiment_rows(experiment, study, done))
    except INCOMPLETE as error:
        if origin.preset is not None and _complete(rows):
            raise  # nothing is missing: the analysis itself is at fault
        missing = _missing(missing, origin, error)
    failed = sum(row["status"] == "failed" for row in rows)
    return Judgement(
        experiment=experiment,
        study=study,
        outcome=outcome,
        missing=tuple(missing),
        scale=_scale(experiment, origin),
        num_done=len(done),
        num_failed=failed,
        num_remaining=len(rows) - len(done) - failed,
    )


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where a study's settings come from, as a store does not say which preset it was run with."""

    preset: str | None  # of the library's study; None: the settings are none of those
    files: Mapping[SettingKey, str]  # data of the user's own, which are not compared
    lacks: Mapping[str, list[Any]]  # values that the study in the library varies and this one not


def _missing(unfinished: list[str], origin: Origin, error: Exception) -> list[str]:
    """What is missing, where it can be told; else what the analysis ran into."""
    missing = unfinished + [
        f"The study of this name in the library also has {axis}: {', '.join(map(label, values))}. "
        "This one has not."
        for axis, values in origin.lacks.items()
    ]
    if isinstance(error, SpiritlevelError) or not missing:
        kind = "" if isinstance(error, SpiritlevelError) else f"{type(error).__name__}: "
        missing.append(f"What the analysis ran into: {kind}{error}")
    return missing


def _complete(rows: Rows) -> bool:
    """Whether every run was finished, and no training diverged."""
    return all(row["status"] == "done" and row["outcome"] != DIVERGED for row in rows)


def _unfinished(study: Study, rows: Rows) -> list[str]:
    """The values of each setting that no finished run has, in words."""
    unfinished = []
    for axis in study.axes:
        every = dict.fromkeys(label(row[axis]) for row in rows)
        done = {label(row[axis]) for row in rows if row["status"] == "done"}
        values = [value for value in every if value not in done]
        if values:
            unfinished.append(f"No run is finished yet with {axis}: {', '.join(values)}.")
    return unfinished


def _scale(experiment: Experiment, origin: Origin) -> tuple[str, ...]:
    """How far the runs are from the paper's."""
    if origin.preset is None:
        said = [
            "Changed by hand, or of another version: the settings are not those of the study of "
            "this name in the library, with any preset or none. How far they are from the paper's "
            "is not known here."
        ]
    else:
        preset = f"preset {origin.preset}" if origin.preset else "without a preset"
        said = [f"Scaled down ({preset}): {experiment.scaled_down[origin.preset]}"]
    if origin.files:
        names = ", ".join(origin.files.values())
        said.append(f"The data were given as {names}; what is in there was not compared.")
    return tuple(said)


def _origin(study: Study, presets: Iterable[str]) -> Origin:
    library = library_study(study.name)
    by_preset = {name: library_study(study.name, name) for name in ("", *library.presets)}
    files = {
        (section, key): value
        for section in ("data", "task")
        for key, value in _entries(getattr(study, section)).items()
        if _is_file(value)
    }
    settings = _settings(study, files)
    equal = (
        name
        for name in presets
        if name in by_preset and _settings(by_preset[name], files) == settings
    )
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


def _settings(study: Study, apart_from: Iterable[SettingKey]) -> set[str]:
    """Of all runs, with what a definition leaves out: two ways to write the same are equal."""
    every_run = set()
    for run in study.runs():
        settings = run.to_dict()
        for section, key in apart_from:
            settings.get(section, {}).pop(key, None)
        every_run.add(json.dumps(settings, sort_keys=True))
    return every_run


def _varied(study: Study) -> dict[str, list[Any]]:
    return ({"variant": list(study.variants)} if study.variants else {}) | {
        axis: list(values) for axis, values in study.grid.items()
    }
