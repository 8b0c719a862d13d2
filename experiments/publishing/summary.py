"""One page over all experiments: which claims reproduced, which did not, which wait."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from spiritlevel.records.content import Cell, IntervalEstimate, Table, plain
from spiritlevel.verbs.audit import NEARLY
from spiritlevel_lab.claims.experiment import PAPERS, Experiment
from spiritlevel_lab.claims.findings import Finding
from spiritlevel_lab.claims.scale import WORDS

from . import markdown
from .audited import AuditRecord, audit_table
from .markdown import escape
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
    "the claim, and not held only if the whole interval excludes the claim: it is on the other "
    "side, or excludes the number that the paper has for networks and data like these. Otherwise "
    "it is undecided. A number without an interval and a threshold of our own refute nothing; what "
    "is said of every run (a bound above all gaps) is counted. That one number is larger than "
    "another is judged by the interval of their difference.",
    "Correlations of what is measured are judged by the widest of the intervals that count runs, "
    "settings, what settings share, and seeds. Where a value was set by us (a noise, a shift), "
    "runs with the same value are replicates, and the interval counts them. Pearson's correlation "
    "of numbers with heavy tails counts only where logarithms or ranks say the same.",
    "A claim is reproduced if all parts are held or not refuted, partly reproduced if some are "
    "held, not reproduced if none is held and one is refuted, and undecided otherwise, unless its "
    "page has its own rule. Each of the first three is so at a smaller scale if data set or "
    "networks are not those of the preset that follows the paper, or less than half of the images "
    "are used.",
    "Each page says when a network counts as trained for its claim. Networks that do not meet that "
    "criterion are shown and not judged; where most of them do not, or too few are left, there is "
    "no verdict. Populations have three outcomes side by side: the gap of the losses, the gap of "
    "the accuracies and the test error. The claim is judged by the one that its rule names.",
    "These rules came after most of the runs, and all results were judged anew by them; only the "
    "presets h200-settings of 003-fig-3 and h200-accuracy of 003-fig-1 were run after theirs were "
    "written. Some whole rules were written after the first runs too, where a page says so, and "
    "some experiments that were undecided with few seeds were run with ten. Parts of claims that "
    "had been overlooked were added as well, but can only lower a verdict.",
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

Earlier = Mapping[str, Sequence[str]]  # by experiment: the preset and its verdict
EARLIER_CAPTION = (
    "What each verdict was when intervals counted settings alone, numbers without an interval "
    "could refute, and refutations did not say their scale. The rows that were recorded are the "
    "same, but for 003-fig-3, whose preset h200-settings was run since."
)
CLAIM_TITLES = (
    "experiment",
    "part of the claim",
    "paper",
    "here",
    "95 % interval",
    "n",
    "counted",
)
CLAIM_CAPTION = (
    "One line for each part of a claim, by the result nearest to the paper of those that can be "
    "judged. A number has an "
    "interval; where it counts settings, groups of them or seeds, the last column but one says how "
    "many. Paper: its number for the same quantity, where it prints one."
)


def summary(
    results: Sequence[Scales],
    waiting: Sequence[Experiment],
    audits: Sequence[AuditRecord] = (),
    earlier: Earlier | None = None,
) -> str:
    """The page, as Markdown; `earlier` are the verdicts before the present rules."""
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
            "## Before the present rules",
            EARLIER_CAPTION,
            markdown.table(earlier_table(nearest, earlier)),
            "## Scale beside the papers",
            SCALES,
            markdown.table(scale_table(nearest)),
            "## Claim by claim",
            CLAIM_CAPTION,
            markdown.table(claims_table(nearest)),
        ]
    for word in WORDS:
        chosen = [scales for scales in results if scales[0].category == word]
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


def earlier_table(results: Sequence[ScaleResult], earlier: Earlier | None) -> Table:
    """One row per experiment: what its verdict was and is, and by which runs."""
    rows: list[Sequence[Cell]] = []
    for result in results:
        preset, was = (earlier or {}).get(result.experiment.name, ("", "not judged then"))
        then, now = (each or "none" for each in (preset, result.record.preset))
        runs = now if then == now else f"{then}, now {now}"
        rows.append([result.experiment.name, was, result.verdict, runs])
    return Table(("experiment", "was", "is", "preset"), rows)


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
