"""One page over all experiments: which claims reproduced, which did not, which wait."""

from __future__ import annotations

from collections.abc import Sequence

from .experiment import Experiment, Outcome
from .records import Record
from .render import VERDICTS, escape


def summary(
    found: Sequence[tuple[Experiment, Record, Outcome]], waiting: Sequence[Experiment]
) -> str:
    """The page, as Markdown."""
    counts = {word: 0 for word in VERDICTS.values()}
    for _, _, outcome in found:
        counts[VERDICTS[outcome.agrees]] += 1
    tally = ", ".join(f"{number} {word}" for word, number in counts.items() if number)
    parts = [
        "# The papers' experiments, run here",
        "Every table and figure below is a study that anyone can run: `spiritlevel study run "
        "NAME`. The rule by which a claim counts as reproduced stands on each page and was settled "
        "before the runs were made, unless the page says otherwise; weak and negative outcomes "
        "stay in. The pages are made from the recorded results in `experiments/results` and from "
        "nothing else.",
        "Most runs so far were small ones on a CPU: 'not reproduced' says that the rule was not "
        "met there. With few runs and wide intervals that is undecided rather than refuted.",
        f"Of {len(found)} that were run: {tally or 'none yet'}.",
    ]
    for agreement, word in VERDICTS.items():
        chosen = [entry for entry in found if entry[2].agrees == agreement]
        if chosen:
            parts += [f"## {word.capitalize()}", _table(chosen)]
    if waiting:
        parts += ["## Not run yet", "Declared, and tested on small runs only:", _waiting(waiting)]
    parts += [
        "## What the measures can tell in these experiments",
        "Which of them move although the network's function stays the same, and when they "
        "mislead, stands on each page beside the numbers; `spiritlevel show NAME` prints the "
        "whole card of a measure and [trust](trust.md) explains the audit.",
    ]
    return "\n\n".join(parts) + "\n"


def _table(chosen: Sequence[tuple[Experiment, Record, Outcome]]) -> str:
    lines = [
        "| experiment | the paper's claim | what came out | runs |",
        "| --- | --- | --- | --- |",
    ]
    for experiment, record, outcome in chosen:
        cells = [
            f"[{experiment.name}](experiments/{experiment.name}.md)",
            escape(experiment.claim),
            escape(outcome.conclusion),
            str(len(record.rows)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _waiting(waiting: Sequence[Experiment]) -> str:
    lines = ["| experiment | the paper's claim |", "| --- | --- |"]
    lines += [f"| {e.name} | {escape(e.claim)} |" for e in waiting]
    return "\n".join(lines)
