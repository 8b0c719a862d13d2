"""The page of an experiment as Markdown: claim, outcome, numbers, what differs, how it was run."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Sequence

from ... import api
from ...study import control
from ...study.registry import study_names
from ..experiment import Cell, Experiment, Outcome, Table
from ..judging.findings import Agreement, Finding
from ..judging.numbers import Estimate, plain
from ..registry import find
from .records import Record

VERDICTS: dict[Agreement, str] = {
    "yes": "reproduced",
    "partly": "partly reproduced",
    "no": "not reproduced",
    "undecided": "undecided at this scale",
}
GPU, WORKERS = "h200", 8  # how names of presets made for one start, and how many share it
SYMMETRIES = {
    "layer_rescale": "rescaling of layers",
    "neuron_rescale": "rescaling of neurons",
}


@dataclasses.dataclass(frozen=True)
class Result:
    """What was recorded at one scale, and what it says about the claim."""

    experiment: Experiment
    record: Record
    outcome: Outcome

    @classmethod
    def of(cls, record: Record) -> Result:
        """Analysed as the experiment says."""
        experiment = find(record.name)
        return cls(experiment, record, experiment.analyse(record.rows))

    @property
    def verdict(self) -> str:
        """In a word or two."""
        return VERDICTS[self.outcome.agrees]


def render(scales: Sequence[Result]) -> str:
    """The whole page of an experiment, by the scale nearest to the paper, then the others.

    The figures lie beside it under the stems of the records.
    """
    (first, *others) = scales
    experiment, record, outcome = first.experiment, first.record, first.outcome
    parts = [
        f"# {experiment.name}: {escape(experiment.title)}",
        f"{escape(experiment.paper)}, {escape(experiment.source)}.",
        f"**The claim.** {escape(experiment.claim)}",
        f"**Here: {first.verdict}.** {escape(outcome.conclusion)}",
        *_elsewhere(first, others),
        markdown_table(parts_of(outcome.findings)),
        *_why(outcome),
        f"When it counts as reproduced: {escape(experiment.rule)}",
        "## The numbers",
        *_numbers(first),
    ]
    parts += _more(outcome)
    if experiment.paper_values:
        parts += ["## Beside the paper's numbers", markdown_table(beside(experiment, outcome))]
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
        markdown_table(_cards(experiment)),
        "The first two columns say whether the number moves when the parameters change and the "
        "network's function does not; `spiritlevel audit` shows it on a network of your own.",
    ]
    for other in others:
        parts += _other_scale(other)
    return "\n\n".join(parts) + "\n"


def _why(outcome: Outcome) -> list[str]:
    return [f"**Why.** {escape(outcome.why)}"] if outcome.why else []


def _numbers(scale: Result) -> list[str]:
    figure = f"![{escape(scale.experiment.title)}]({scale.record.stem}.svg)"
    return [
        markdown_table(scale.outcome.table),
        "Where a number has brackets, they hold its 95 % interval over runs; Student's, for a "
        "mean, can pass the limits of what the number can be when runs are few.",
        *([figure] if scale.outcome.figure is not None else []),
    ]


def _more(outcome: Outcome) -> list[str]:
    parts = []
    for section in outcome.more:
        parts += [f"## {escape(section.title)}", escape(section.text)]
        parts += [markdown_table(section.table)]
    return parts


def _elsewhere(first: Result, others: Sequence[Result]) -> list[str]:
    """In a sentence, what the other scales say: where they differ, the reader should know first."""
    if not others:
        return []
    said = "; ".join(
        f"{scale_in_words(other.record)} ({len(other.record.rows)} runs): {other.verdict}"
        for other in others
    )
    return [f"The above is {scale_in_words(first.record)}. It was also run {said}; see the end."]


def _other_scale(scale: Result) -> list[str]:
    """The whole outcome at another scale; claim, rule and measures stand above."""
    record = scale.record
    return [
        f"## Also run {scale_in_words(record)}",
        f"**{scale.verdict.capitalize()}.** {escape(scale.outcome.conclusion)}",
        markdown_table(parts_of(scale.outcome.findings)),
        *_why(scale.outcome),
        *_numbers(scale),
        *_more(scale.outcome),
        escape(scale.experiment.scaled_down[record.preset]),
        *([escape(record.note)] if record.note else []),
        f"```console\n{_commands(record)}\n```",
        _how(record),
    ]


def scale_in_words(record: Record) -> str:
    """To go on with "It was run"."""
    return f"with the preset {record.preset}" if record.preset else "without a preset"


def markdown_table(table: Table) -> str:
    """With every name from outside escaped."""
    lines = [
        [escape(title) for title in table.columns],
        ["---"] * len(table.columns),
        *([cell_text(cell) for cell in row] for row in table.rows),
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def cell_text(cell: Cell) -> str:
    """A number with four digits, an estimate with its interval, text escaped."""
    if cell is None:
        return "–"
    if isinstance(cell, Estimate):
        return str(cell)
    if isinstance(cell, float):
        return plain(cell)
    return escape(str(cell))


def escape(text: str) -> str:
    """Text that Markdown and HTML show as it is."""
    shown = html.escape(text, quote=False)
    for mark in "\\`*_[]|":
        shown = shown.replace(mark, "\\" + mark)
    return " ".join(shown.split())


def parts_of(findings: Sequence[Finding]) -> Table:
    """The claim, part by part."""
    rows = [[finding.part, finding.result, finding.seen] for finding in findings]
    return Table(("part of the claim", "here", "seen"), rows)


def beside(experiment: Experiment, outcome: Outcome) -> Table:
    """The paper's numbers and ours."""
    rows = [
        [key, value, outcome.beside.get(key), _n(outcome.beside.get(key))]
        for key, value in experiment.paper_values.items()
    ]
    return Table(("what", "paper", "here", "n"), rows)


def _n(found: Estimate | None) -> int | None:
    return None if found is None else found.n


def _commands(record: Record) -> str:
    """What to type; data that is not part of the package is fetched first."""
    study = control.find(record.name)
    if record.preset:
        study = study.with_preset(record.preset)
    needed = sorted(set(control.data_to_fetch(study).values()))
    lines = [f"$ spiritlevel data fetch {name}" for name in needed]
    before = _study_kept_in(str((study.runs()[0].task or {}).get("population", "")))
    for name in filter(None, (before, record.name)):
        preset = f" --preset {record.preset}" if record.preset else ""
        where = f" --device cuda --workers {WORKERS}" if record.preset.startswith(GPU) else ""
        lines.append(f"$ spiritlevel study run {name}{preset}{where}")
    return "\n".join(lines)


def _study_kept_in(folder: str) -> str:
    """The study whose networks are taken over, by where it is kept; "" if there is none."""
    if not folder:
        return ""
    names = (
        name
        for name in study_names()
        for preset in control.find(name).presets
        if control.default_folder(name, preset).as_posix() == folder
    )
    return next(names, "")


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
    return escape(f"{runs}, {_duration(record.seconds)} of work in all. Machine: {machines}.")


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def _cards(experiment: Experiment) -> Table:
    rows: list[Sequence[Cell]] = []
    for name in experiment.measures:
        (card,) = api.cards(name)
        moves = ["unchanged" if s in card.invariant else "moves" for s in SYMMETRIES]
        rows.append([name, *moves, card.misleads])
    return Table(("measure", *SYMMETRIES.values(), "when it misleads"), rows)
