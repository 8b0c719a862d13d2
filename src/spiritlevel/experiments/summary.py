"""One page over all experiments: which claims reproduced, which did not, which wait."""

from __future__ import annotations

from collections.abc import Sequence

from .audited import AuditRecord, audit_table
from .experiment import Experiment, Outcome
from .records import Record
from .render import VERDICTS, escape, markdown_table


def summary(
    found: Sequence[tuple[Experiment, Record, Outcome]],
    waiting: Sequence[Experiment],
    audits: Sequence[AuditRecord] = (),
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
        "Each claim is taken apart. A part is held if its whole 95 % interval is on the side of "
        "the claim, not held if it is on the other side or excludes the number the paper has, and "
        "undecided if it is on both sides; a part that says nothing moves can be refuted, not "
        "shown. A claim is reproduced if all parts are held or not refuted, partly if some are "
        "held, not reproduced if none is and one is refuted, and undecided at this scale "
        "otherwise, unless its page has a rule of its own. (Undecided was told from not "
        "reproduced after most runs had been made; what counts as held was not touched.)",
        f"Of {len(found)} that were run: {tally or 'none yet'}.",
    ]
    for agreement, word in VERDICTS.items():
        chosen = [entry for entry in found if entry[2].agrees == agreement]
        if chosen:
            parts += [f"## {word.capitalize()}", _table(chosen)]
    if waiting:
        parts += ["## Not run yet", "Declared, and tested on small runs only:", _waiting(waiting)]
    parts += ["## What the measures can tell in these experiments"]
    if audits:
        parts += [
            "The audit, on one trained network of each kind: does the number move when the weights "
            "change along a symmetry and the network's function does not? A number that does "
            "cannot carry a claim about generalization across networks by itself.",
            markdown_table(audit_table(audits)),
            escape(
                " ".join(f"{a.network}: {', '.join(a.moves)}; {a.samples} samples." for a in audits)
            ),
        ]
    parts += [
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
