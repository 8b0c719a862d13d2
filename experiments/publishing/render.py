"""The page of an experiment as Markdown: claim, outcome, numbers, what differs, how it was run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from spiritlevel.inputs.models.registry import TO_INSTALL
from spiritlevel.records.content import Cell, Panels, Part, Table, Text
from spiritlevel.verbs import measuring as api
from spiritlevel_lab.claims.experiment import Experiment, Outcome
from spiritlevel_lab.claims.scale import library_study
from spiritlevel_lab.papers.registry import find
from spiritlevel_lab.papers.study_section import claim_table, paper_values_table
from spiritlevel_lab.population import control
from spiritlevel_lab.population.registry import study_names
from spiritlevel_lab.population.runs.outcomes import ALL_EPOCHS, DIVERGED

from . import markdown
from .markdown import escape
from .public_data import data_to_fetch
from .recorded import Record
from .results import ScaleResult, scale_in_words

BRACKETS = (
    "Brackets hold the 95 % interval of a number, over runs unless a column says otherwise. With "
    "few runs, Student's interval of a mean can go beyond the values that the number can have."
)
GPU, WORKERS = "h200", 8  # how names of presets made for one start, and how many share it
SYMMETRIES = {
    "layer_rescale": "rescaling of layers",
    "neuron_rescale": "rescaling of neurons",
}


def render(scales: Sequence[ScaleResult]) -> str:
    """The whole page of an experiment, by the first of the scales, then the others.

    The figures lie beside it, each under the stem of its scale.
    """
    (first, *others) = scales
    experiment, record, outcome = first.experiment, first.record, first.outcome
    parts = [
        f"# {experiment.name}: {escape(experiment.title)}",
        f"{escape(experiment.paper)}, {escape(experiment.source)}.",
        f"**The claim.** {escape(experiment.claim)}",
        f"**Here: {first.verdict}.** {escape(outcome.conclusion)}",
        *_elsewhere(first, others),
        markdown.table(claim_table(outcome.findings)),
        *_remarks(outcome),
        f"When it counts as reproduced: {escape(experiment.rule)}",
        f"When a network counts as trained: {escape(str(experiment.trained))}",
        "## The numbers",
        *markdown.render(_numbers(first)),
        *markdown.render(outcome.more),
    ]
    if experiment.paper_values:
        parts += markdown.render([paper_values_table(experiment, outcome)])
    parts += [
        "## What was done, and what was scaled down",
        escape(experiment.set_up),
        escape(experiment.scaled_down[record.preset]),
    ]
    if record.note:
        parts.append(escape(record.note))
    parts += [
        "## How to run it",
        f"```console\n{_commands(record)}\n```",
        _how(record),
        "## What to know about the measures",
        markdown.table(_cards(experiment)),
        "The first two columns say whether the number changes when the parameters change and the "
        "network's function does not; `spiritlevel audit` shows this for your own network.",
    ]
    for other in others:
        parts += _other_scale(other)
    return "\n\n".join(parts) + "\n"


def _remarks(outcome: Outcome) -> list[str]:
    said = {"Left out": outcome.left_out, "Why": outcome.why}
    return [f"**{word}.** {escape(text)}" for word, text in said.items() if text]


def _numbers(scale: ScaleResult) -> list[Part | Panels]:
    outcomes = scale.outcome.outcomes
    parts: list[Part | Panels] = [] if outcomes is None else [outcomes]
    parts += [scale.outcome.table, Text([BRACKETS])]
    if scale.outcome.figure is not None:
        title = scale.experiment.title
        parts.append(dataclasses.replace(scale.outcome.figure, id=scale.stem, title=title))
    return parts


def _elsewhere(first: ScaleResult, others: Sequence[ScaleResult]) -> list[str]:
    """In a sentence, what the other scales say: where they differ, the reader should know first."""
    if not others:
        return []
    said = "; ".join(
        f"{scale_in_words(other.record)} ({len(other.record.rows)} runs): {other.verdict}"
        for other in others
    )
    return [f"The above is {scale_in_words(first.record)}. It was also run {said}; see the end."]


def _other_scale(scale: ScaleResult) -> list[str]:
    """The whole outcome at another scale; claim, rule and measures stand above."""
    record = scale.record
    return [
        f"## Also run {scale_in_words(record)}",
        f"**{scale.verdict.capitalize()}.** {escape(scale.outcome.conclusion)}",
        markdown.table(claim_table(scale.outcome.findings)),
        *_remarks(scale.outcome),
        *_criterion(scale),
        *markdown.render(_numbers(scale)),
        *markdown.render(scale.outcome.more),
        escape(scale.experiment.scaled_down[record.preset]),
        *([escape(record.note)] if record.note else []),
        f"```console\n{_commands(record)}\n```",
        _how(record),
    ]


def _criterion(scale: ScaleResult) -> list[str]:
    """What counts as trained, where this scale has a criterion of its own."""
    if scale.record.preset not in scale.experiment.trained_in:
        return []
    return [f"When a network counts as trained: {escape(str(scale.experiment.trained))}"]


def _commands(record: Record) -> str:
    """What to type; packages and data that do not come with this one first."""
    study = library_study(record.name, record.preset)
    run = study.runs()[0]
    folders = [run.task.arguments.get("population") if run.task else None, run.model.init_from]
    before = [kept for folder in folders if (kept := _study_kept_in(folder))]
    studies = [study, *(library_study(name, preset) for name, preset in before)]
    needed = sorted({name for each in studies for name in data_to_fetch(each).values()})
    lines = [f"$ {TO_INSTALL[run.model.name]}"] if run.model.name in TO_INSTALL else []
    lines += [f"$ spiritlevel data fetch {name}" for name in needed]
    timed = [record.name] if find(record.name).takes_times else []
    together = any(machine.get("trained") == "together" for machine in record.machines)
    for name, chosen in [*before, (record.name, record.preset)]:
        preset = f" --preset {chosen}" if chosen else ""
        workers = "" if name in timed else f" --workers {WORKERS}"
        executor = " --executor vmap" if together and name == record.name else ""
        where = f" --device cuda{executor}{workers}" if chosen.startswith(GPU) else ""
        lines.append(f"$ spiritlevel study run {name}{preset}{where}")
    return "\n".join(lines)


def _study_kept_in(folder: str | None) -> tuple[str, str] | None:
    """The study whose networks are taken over, and its preset; None if the library has none."""
    if folder is None:
        return None
    kept = {
        control.default_folder(name, preset).as_posix(): (name, preset)
        for name in study_names()
        for preset in ("", *library_study(name).presets)
    }
    return kept.get(folder)


def _how(record: Record) -> str:
    runs = f"{len(record.rows)} runs"
    if record.unfinished:
        runs += f" (not finished and left out: {record.unfinished})"
    machines = "; ".join(
        dict.fromkeys(
            f"{m['device']}, threads: {m['threads']}, torch {m['torch']}, spiritlevel "
            f"{m['spiritlevel']}"
            for m in record.machines
        )
    )
    work = f"{runs}, {_duration(record.seconds)} of work in all."
    return escape(" ".join(filter(None, (work, _stopped(record), f"Machine: {machines}."))))


def _stopped(record: Record) -> str:
    """In how many runs training reached its stopping criterion; "" where there is none."""
    criteria = library_study(record.name, record.preset).runs()[0].stop.to_dict()
    ends = [row["outcome"] for row in record.rows if "outcome" in row]
    if not ends or not criteria:
        return ""
    words = ", ".join(f"{name} {value}" for name, value in criteria.items())
    reached = sum(end not in (ALL_EPOCHS, DIVERGED) for end in ends)
    return f"Training reached its stopping criterion ({words}) in {reached} of {len(ends)} runs."


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def _cards(experiment: Experiment) -> Table:
    rows: list[Sequence[Cell]] = []
    for name in experiment.measures:
        (card,) = api.cards(name)
        moves = ["unchanged" if s in card.invariant else "changes" for s in SYMMETRIES]
        rows.append([name, *moves, card.misleads])
    return Table(("measure", *SYMMETRIES.values(), "when it misleads"), rows)
