"""One page over all experiments: which claims reproduced, which did not, which wait."""

from __future__ import annotations

from collections.abc import Sequence

from ...analysis.audit import NEARLY
from ..experiment import PAPERS, Experiment
from .audited import AuditRecord, audit_table
from .render import VERDICTS, Result, escape, markdown_table, scale_in_words

Scales = Sequence[Result]  # of one experiment, that nearest to the paper first
HOW = (
    "Every table and figure below is a study that anyone can run: `spiritlevel study run NAME`. "
    "The rule by which a claim counts as reproduced stands on each page and was settled before the "
    "runs were made, unless the page says otherwise; weak and negative outcomes stay in. The pages "
    "are made from the recorded results in `experiments/results` and from nothing else.",
    "Each claim is taken apart. A part is held if its whole 95 % interval is on the side of the "
    "claim, not held if it is on the other side or excludes the number the paper has, and "
    "undecided if it is on both sides; a part that says nothing moves can be refuted, not shown. "
    "Parts that compare numbers without an interval (which measure comes first, whether one falls "
    "at every step) are held or not by what was seen. A claim is reproduced if all parts are held "
    "or not refuted, partly if some are held, not reproduced if none is and one is refuted, and "
    "undecided at this scale otherwise, unless its page has a rule of its own.",
    "Three things were done after runs had been looked at, and make these results a little less "
    "strict than they look: undecided was told from not reproduced; some experiments that few "
    "seeds had left undecided were run with ten, as their pages say; and parts of claims that had "
    "been overlooked were added, as the rules say.",
    "Large values of every measure of flatness here (κ, trace, eigenvalue) mean sharp: a network "
    "becomes flatter when they fall.",
)
UNTESTED = (
    "Networks that were trained on ImageNet first, from which paper 000 starts (here: random "
    "weights, or another small data set).",
    "A vision transformer of full size on a part of ImageNet (001, Fig. 6), a text transformer on "
    "BoolQ (001, Fig. 8; here handwritten digits are written as texts), ResNet-50 (001, Fig. 9).",
    "The appendices of 002: clouds, kernel density and δ follow its published code.",
)


def summary(
    found: Sequence[Scales],
    waiting: Sequence[Experiment],
    audits: Sequence[AuditRecord] = (),
) -> str:
    """The page, as Markdown."""
    parts = ["# The papers' experiments, run here", *HOW, _papers(), _tally(found)]
    if found:
        parts.append(_overview(found))
    for agreement, word in VERDICTS.items():
        chosen = [scales for scales in found if scales[0].outcome.agrees == agreement]
        if chosen:
            parts += [f"## {word.capitalize()}", *map(_entry, chosen)]
    if waiting:
        parts += ["## Not run yet", "Declared, and tested on small runs only:", _waiting(waiting)]
    reasons = [scales for scales in found if scales[0].outcome.why]
    if reasons:
        parts += [
            "## Why flatness misses the gap, or seems to follow it",
            "Training loss and certainty differ between networks, go with flatness, and go with "
            "the gap. What is left of a correlation when they are held fixed says more than the "
            "correlation itself.",
            *(f"**{_link(s)}** {escape(s[0].outcome.why)}" for s in reasons),
        ]
    parts += ["## What could not be tested here", "\n".join(f"- {each}" for each in UNTESTED)]
    parts += ["## What the measures can tell in these experiments"]
    if audits:
        parts += [
            "The audit, on one trained network of each kind: does the number move when the weights "
            "change along a symmetry and the network's function does not? A number that does "
            "cannot carry a claim about generalization across networks by itself. Nearly "
            f"comparable: factors of 5 to 25 on the weights move it less than {NEARLY:g}-fold.",
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


def _papers() -> str:
    lines = [f"- **{number}** {escape(title)}" for number, title in PAPERS.items()]
    return "The papers, by the number that names start with:\n\n" + "\n".join(lines)


def _tally(found: Sequence[Scales]) -> str:
    counts = {word: 0 for word in VERDICTS.values()}
    for scales in found:
        counts[scales[0].verdict] += 1
    tally = ", ".join(f"{number} {word}" for word, number in counts.items() if number)
    text = f"Of {len(found)} that were run: {tally or 'none yet'}."
    twice = sum(len(scales) > 1 for scales in found)
    if twice:
        text += (
            f" {twice} of them were run more than once, at another scale or with other rates; "
            "each stands where the one nearest to the paper puts it, with what the others said."
        )
    return text


def _overview(found: Sequence[Scales]) -> str:
    titles = ("experiment", "what", "here", "runs", "machine", "also run")
    lines = [list(titles), ["---"] * len(titles)]
    for first, *others in found:
        also = "; ".join(
            f"{scale_in_words(other.record)} ({len(other.record.rows)} runs): {other.verdict}"
            for other in others
        )
        lines.append(
            [
                _page(first),
                escape(first.experiment.title),
                first.verdict,
                str(len(first.record.rows)),
                escape(_devices(first)),
                also or "–",
            ]
        )
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _page(result: Result) -> str:
    name = result.experiment.name
    return f"[{name}](experiments/{name}.md)"


def _devices(result: Result) -> str:
    names = {machine["device"] for machine in result.record.machines}
    return ", ".join(sorted(name.replace("(R)", "").removesuffix(" Processor") for name in names))


def _link(scales: Scales) -> str:
    return f"{_page(scales[0])}, {escape(scales[0].experiment.title)}."


def _entry(scales: Scales) -> str:
    """Claim and outcome as text: in the cells of a table they would be a column of single words."""
    first, *others = scales
    parts = [
        f"**{_link(scales)}** *Claim:* {escape(first.experiment.claim)}",
        f"*Here* ({len(first.record.rows)} runs, {escape(_devices(first))}): "
        f"{escape(first.outcome.conclusion)}",
        *(
            f"*Also run {scale_in_words(other.record)}* ({len(other.record.rows)} runs), "
            f"{other.verdict}: "
            f"{escape(other.outcome.conclusion)}"
            for other in others
        ),
    ]
    return "\n\n".join(parts)


def _waiting(waiting: Sequence[Experiment]) -> str:
    lines = ["| experiment | the paper's claim |", "| --- | --- |"]
    lines += [f"| {e.name} | {escape(e.claim)} |" for e in waiting]
    return "\n".join(lines)
