"""One page over all experiments: which claims reproduced, which did not, which wait."""

from __future__ import annotations

from collections.abc import Sequence

from .audited import AuditRecord, audit_table
from .experiment import Experiment
from .render import VERDICTS, Result, escape, markdown_table


def summary(
    found: Sequence[Sequence[Result]],
    waiting: Sequence[Experiment],
    audits: Sequence[AuditRecord] = (),
) -> str:
    """The page, as Markdown; of each experiment its scales, that nearest to the paper first."""
    counts = {word: 0 for word in VERDICTS.values()}
    for scales in found:
        counts[scales[0].verdict] += 1
    twice = sum(len(scales) > 1 for scales in found)
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
        f"Of {len(found)} that were run: {tally or 'none yet'}."
        + (
            f" {twice} of them were run at two scales; each stands where the larger one puts it, "
            "with what the smaller one said."
            if twice
            else ""
        ),
    ]
    for agreement, word in VERDICTS.items():
        chosen = [scales for scales in found if scales[0].outcome.agrees == agreement]
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


def _table(chosen: Sequence[Sequence[Result]]) -> str:
    lines = [
        "| experiment | the paper's claim | what came out | runs | machine | at a smaller scale |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for first, *others in chosen:
        name = first.experiment.name
        cells = [
            f"[{name}](experiments/{name}.md)",
            escape(first.experiment.claim),
            escape(first.outcome.conclusion),
            str(len(first.record.rows)),
            escape(", ".join(sorted({m["device"] for m in first.record.machines}))),
            "; ".join(f"{other.verdict} ({len(other.record.rows)})" for other in others) or "–",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _waiting(waiting: Sequence[Experiment]) -> str:
    lines = ["| experiment | the paper's claim |", "| --- | --- |"]
    lines += [f"| {e.name} | {escape(e.claim)} |" for e in waiting]
    return "\n".join(lines)
