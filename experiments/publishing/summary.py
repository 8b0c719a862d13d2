"""One page over all experiments: which claims reproduced, which did not, which wait."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from spiritlevel.analysis.audit import NEARLY
from spiritlevel.content import Cell, IntervalEstimate, Table, plain
from spiritlevel.pages import markdown
from spiritlevel.pages.markdown import escape
from spiritlevel.papers.judging.experiment import PAPERS, Experiment
from spiritlevel.papers.judging.findings import Finding
from spiritlevel.papers.judging.scale import WORDS

from .audited import AuditRecord, audit_table
from .results import ScaleResult, scale_in_words, tally
from .scale_table import CAPTION as SCALES
from .scale_table import scale_table

Scales = Sequence[ScaleResult]  # of one experiment, the one that it is listed by first
HOW = (
    "Every table and figure below is a study that anyone can run: `spiritlevel study run NAME`; a "
    "figure that looks at the runs of a table says so, its page has the command, and `spiritlevel "
    "study report` judges it with the table. "
    "Each page gives the rule by which its claim counts as reproduced. The rules were fixed before "
    "the runs were made, unless the page says otherwise, and weak or negative results are kept. "
    "The pages are made from the recorded results in `experiments/results` and from nothing else.",
    "Each claim is split into parts. A part is held if its whole 95 % interval is on the side of "
    "the claim, not held if it is on the other side or excludes the number the paper has, and "
    "undecided if it is on both sides. A part that says that nothing changes can be refuted, but "
    "not proven. Parts that compare numbers without an interval (which measure comes first, "
    "whether one falls at every step) are judged by the numbers alone. A claim is reproduced if "
    "all parts are held or not refuted, partly reproduced if some are held, not reproduced if none "
    "is held and one is refuted, and undecided at this scale otherwise, unless its page has its "
    "own rule. It is reproduced at a smaller scale if its data set or networks are not those of "
    "the preset that follows the paper, or less than half of the images are used.",
    "Each page says when a network counts as trained for its claim. Networks that are not are "
    "never judged: they are counted and left out, and where too few are left the claim is not "
    "testable by these runs, whatever their numbers are. These limits were set after the first "
    "runs, in which networks at the loss of chance had been judged like others.",
    "Some things were decided after runs had been looked at, which makes these results less strict "
    "than they look: when a network counts as trained, as said above; that undecided is not the "
    "same as not reproduced; some whole rules or limits in them, where a page says so; and that "
    "some experiments that were undecided with few seeds were run with ten. Parts of claims that "
    "had been overlooked were added as well, but can only lower a verdict. Intervals over groups "
    "of settings that share a value came last; they are shown and not judged.",
    "For every measure of flatness here (κ, trace, eigenvalue) a large value means sharp: a "
    "network becomes flatter when the value falls.",
)
MISSING = (
    "Training on ImageNet, and ResNet-18 with weights from it, from which paper 000 starts (here "
    "EfficientNet-Lite0 with such weights, elsewhere random weights or those of a small data set).",
    "ViT-Base on a part of ImageNet (001, Fig. 6; here a small vision transformer on CIFAR-10) and "
    "ResNet-50 (001, Fig. 9 (b)).",
    "BoolQ (001, Fig. 8; here handwritten digits are written as texts).",
    "The kernel density of 002's appendices: clouds and δ follow its published code, but the "
    "density here has one bandwidth, the most likely one (002-fig-4).",
)

CLAIM_TITLES = (
    "experiment",
    "part of the claim",
    "paper",
    "here",
    "95 % interval",
    "n",
    "settings",
)
CLAIM_CAPTION = (
    "One line for each part of a claim, by the result nearest to the paper of those that can be "
    "judged. A number has an "
    "interval, over settings where networks of one setting are repeated and over runs or pairs of "
    "runs elsewhere; the column settings says how many there are. Paper: its number for the same "
    "quantity, where it prints one."
)


def summary(
    results: Sequence[Scales],
    waiting: Sequence[Experiment],
    audits: Sequence[AuditRecord] = (),
) -> str:
    """The page, as Markdown."""
    parts = [
        "# The papers' experiments, run here",
        "What is missing, said once:",
        "\n".join(f"- {each}" for each in MISSING),
        *HOW,
        _papers(),
        _tally(results),
    ]
    if results:
        nearest = [scales[0] for scales in results]
        parts += [
            _overview(results),
            "## Scale beside the papers",
            SCALES,
            markdown.table(scale_table(nearest)),
            "## Claim by claim",
            CLAIM_CAPTION,
            markdown.table(claims_table(nearest)),
        ]
    for word in WORDS:
        chosen = [scales for scales in results if scales[0].verdict == word]
        if chosen:
            parts += [f"## {word.capitalize()}", *map(_entry, chosen)]
    if waiting:
        parts += ["## Not run yet", "Defined, and tested on small runs only:", _waiting(waiting)]
    reasons = [scales for scales in results if scales[0].outcome.why]
    if reasons:
        parts += [
            "## Why flatness misses the gap, or seems to follow it",
            "Training loss and confidence differ between networks and are associated with flatness "
            "and with the gap. What remains of a correlation when they are held fixed says more "
            "than the correlation itself.",
            *(f"**{_link(s)}** {escape(s[0].outcome.why)}" for s in reasons),
        ]
    parts += ["## What the measures can tell in these experiments"]
    if audits:
        parts += [
            "The audit of one trained network of each kind: does the number change when the "
            "weights change along a symmetry and the network's function does not? Such a number "
            "cannot by itself support a claim about generalization across networks. Nearly "
            f"comparable: factors of 5 to 25 on the weights change it less than {NEARLY:g}-fold.",
            markdown.table(audit_table(audits)),
            escape(
                " ".join(f"{a.network}: {', '.join(a.moves)}; {a.samples} samples." for a in audits)
            ),
        ]
    parts += [
        "Each page says beside the numbers which of them change although the network's function "
        "stays the same, and when they mislead. `spiritlevel show NAME` prints the whole card of "
        "a measure, and [trust](trust.md) explains the audit.",
    ]
    return "\n\n".join(parts) + "\n"


def _papers() -> str:
    lines = [f"- **{number}** {escape(title)}" for number, title in PAPERS.items()]
    return "The papers, by the number that the names start with:\n\n" + "\n".join(lines)


def _tally(results: Sequence[Scales]) -> str:
    text = tally([scales[0] for scales in results])
    twice = sum(len(scales) > 1 for scales in results)
    if twice:
        text += (
            f" {twice} of them were run more than once, at another scale or with other rates; "
            "each is listed by the result nearest to the paper of those that can be judged, with "
            "the others beside it."
        )
    return text


def _overview(results: Sequence[Scales]) -> str:
    titles = ("experiment", "what", "here", "runs", "machine", "also run")
    lines = [list(titles), ["---"] * len(titles)]
    for first, *others in results:
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


def _page(result: ScaleResult) -> str:
    name = result.experiment.name
    return f"[{name}](experiments/{name}.md)"


def _devices(result: ScaleResult) -> str:
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


def claims_table(results: Iterable[ScaleResult]) -> Table:
    """One row per part."""
    rows: list[Sequence[Cell]] = [
        [result.experiment.name, finding.part, *_cells(finding), finding.result]
        for result in results
        for finding in result.outcome.findings
    ]
    return Table((*CLAIM_TITLES, "verdict"), rows)


def _cells(finding: Finding) -> list[Cell]:
    paper = None if finding.paper is None else plain(finding.paper)
    number = finding.number
    if number is None and isinstance(finding.seen, IntervalEstimate):
        number = finding.seen
    if number is None:
        return [paper, str(finding.seen), None, None, finding.clusters]
    ends = None
    if not math.isnan(number.low):
        ends = f"[{plain(number.low, 3)}, {plain(number.high, 3)}]"
    return [paper, plain(number.value, 3), ends, number.n, finding.clusters]
