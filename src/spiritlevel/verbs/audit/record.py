"""The numbers before and after every move of an audit, and what follows from them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from ...ground.plain_text import visible
from ...measures import OF_OUTPUTS, registered_cards
from ...measures.confounders import MEASURED_ALONG
from ...records.content import ERROR, SHORT, Cell, Column, Part, Table, Text, number
from ...records.measurements import Cost, Measurement, Report, Status
from ...records.notebooks import Shown
from ...records.reading import Misread, Saved, to_plain
from ...symmetries import CONFIDENCE_ONLY

Kind = Literal["comparable", "confidence", "nearly", "scale", "untested", "open", "confounder"]
AnswerKind = Literal["unchanged", "nearly", "changes", "untested", "open"]

WORDS: dict[Kind, str] = {
    "comparable": "comparable between networks: no symmetry of this network changes it, nor does "
    "the size of the logits",
    "confidence": "comparable at equal confidence: it follows the size of the logits",
    "nearly": "nearly comparable: factors of 5 to 25 on the weights change it less than twofold",
    "scale": "not comparable: it changes although the network's function stays the same",
    "untested": "not tested for everything that could change it",
    "open": "not decided: its error could hide what the moves do to it",
    "confounder": "not a flatness measure; shown for context",
}
REFINE = "lower rtol, raise max_passes or use more samples"
NEARLY = 2.0  # a factor that matters little beside those on the weights
FACTOR = 3  # digits of what a move did
ANSWERS = ("scale", "confidence")  # what a measure is asked for
UNCHANGED = 0.01  # relative: what rounding may do to weights multiplied by up to 25
# Relative: a wider error would hide what moves do to some measures, 1.3 to 1.5 times. Two estimates
# that are refined to the usual 5 % come to 0.108.
HIDING = 0.12


@dataclasses.dataclass(frozen=True)
class Answer:
    """Whether moves of one sort change a measure."""

    kind: AnswerKind
    text: str


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether a measure can be compared between networks like this one, and why."""

    kind: Kind
    text: str
    scale: Answer  # moves that keep the function
    confidence: Answer  # moves that change the size of the logits and nothing else


def scale_answer(
    factors: Mapping[str, float | None], *, on_function_alone: bool, unexplored: str
) -> Answer:
    """From the factor that each move made, the worst of its draws; None where that is open.

    A factor of 1 is no change. A measure that is defined `on_function_alone` needs no test; for
    another one, what is unexplored could change it.
    """
    worst, undecided = _sorted(factors)
    tried = "no move that was tried changes it" if factors else "no move could be tried"
    if worst is not None:
        factor = factors[worst] or 0.0
        tried = f"{number(factor, FACTOR)} times under {worst}"
        if not is_small(factor):
            return Answer("changes", tried)
    if undecided:
        return Answer("open", f"{', '.join(undecided)}; {REFINE}")
    if on_function_alone and worst is None:
        return Answer("unchanged", "by definition it depends on the function alone")
    if unexplored:
        return Answer("untested", f"{tried}, but {unexplored}")
    if worst is not None:
        return Answer("nearly", tried)
    return Answer("unchanged", "no symmetry changes it" if factors else "there is no symmetry")


def confidence_answer(factors: Mapping[str, float | None], absent: str) -> Answer:
    """The same for the size of the logits; `absent` says why it could not be changed."""
    if not factors:
        return Answer("untested", f"the size of the logits could not be changed ({absent})")
    worst, undecided = _sorted(factors)
    if worst is not None:
        return Answer("changes", f"{number(factors[worst] or 0.0, FACTOR)} times under {worst}")
    if undecided:
        return Answer("open", f"{', '.join(undecided)}; {REFINE}")
    return Answer("unchanged", "the size of the logits does not change it")


def _sorted(factors: Mapping[str, float | None]) -> tuple[str | None, list[str]]:
    """The move that changes most, if one does; and those that are not decided."""
    moving = {name: factor for name, factor in factors.items() if factor not in (None, 1.0)}
    worst = max(moving, key=lambda name: strength(moving[name] or 0.0), default=None)
    return worst, [name for name, factor in factors.items() if factor is None]


def is_small(factor: float) -> bool:
    """Whether a factor matters little beside those on the weights, in either direction."""
    return 1 / NEARLY < factor < NEARLY


def strength(factor: float) -> float:
    """How far from 1 a factor is; nothing is further than 0 and infinity."""
    return abs(math.log(abs(factor))) if factor and math.isfinite(factor) else math.inf


def joined(scale: Answer, confidence: Answer) -> Verdict:
    """Both answers, and the word that sums them up: whatever is in the way comes first."""
    kind = _kind(scale, confidence)
    text = f"{WORDS[kind]} (scale: {scale.text}; confidence: {confidence.text})"
    return Verdict(kind, text, scale, confidence)


def _kind(scale: Answer, confidence: Answer) -> Kind:
    if scale.kind == "changes":
        return "scale"
    if "open" in (scale.kind, confidence.kind):
        return "open"
    if "untested" in (scale.kind, confidence.kind):
        return "untested"
    if scale.kind == "nearly":
        return "nearly"
    return "confidence" if confidence.kind == "changes" else "comparable"


@dataclasses.dataclass(eq=False, repr=False)
class Audit(Shown, Saved):
    """The values before and after every move, and what they show."""

    CALLED: ClassVar = "the audit"
    EXTENDED: ClassVar = True  # by the verdicts
    FORMAT: ClassVar = "spiritlevel-audit-2"

    original: Report
    moved: Mapping[str, Sequence[Report]]  # a report for each draw of a move's factors
    moves: Mapping[str, str] = dataclasses.field(kw_only=True)  # what each of them does
    absent: Mapping[str, str] = dataclasses.field(kw_only=True)  # why others do not apply
    unexplored: str = dataclasses.field(default="", kw_only=True)  # symmetries perhaps missed
    measured_on: str = dataclasses.field(default="", kw_only=True)  # which samples, if not all
    # measures that the budget left out, and what each would take in forward-backwards
    left_out: Mapping[str, float] = dataclasses.field(default_factory=dict, kw_only=True)
    cost: Cost = dataclasses.field(default_factory=Cost, kw_only=True)  # of all that was done

    def __repr__(self) -> str:
        kinds = ", ".join(f"{name}: {verdict.kind}" for name, verdict in self.verdicts.items())
        return visible(f"Audit({kinds})")

    @property
    def preserving(self) -> list[str]:
        """The moves that leave the function as it is."""
        return [move for move in self.moved if move not in CONFIDENCE_ONLY]

    def after(self, measure: str, move: str) -> Measurement:
        """The measurement that the move changed most, of all its draws."""
        before = self.original[measure].value
        return max(
            self.draws_of(measure, move), key=lambda after: strength(ratio(before, after.value))
        )

    def draws_of(self, measure: str, move: str) -> list[Measurement]:
        """The measurements after each draw of a move; once it is settled, it is not drawn again."""
        return [report[measure] for report in self.moved[move] if measure in report]

    def factor(self, measure: str, move: str) -> float:
        """What the number was multiplied by, at worst; infinite where it was 0 before."""
        return ratio(self.original[measure].value, self.after(measure, move).value)

    def has_moved(self, measure: str, move: str) -> bool | None:
        """Whether the number changed in any draw; None where its errors leave that open."""
        outcomes = self._outcomes(measure, move)
        return True if True in outcomes else None if None in outcomes else False

    def verdict(self, measure: str) -> Verdict:
        """What the moves say about this measure: about scale, about confidence, and in sum."""
        if measure in MEASURED_ALONG:
            aside = Answer("untested", "it is not a flatness measure")
            return Verdict("confounder", WORDS["confounder"], aside, aside)
        cards = {card.name: card for card in registered_cards()}
        on_function_alone = measure in cards and cards[measure].invariant >= OF_OUTPUTS
        scale = scale_answer(
            {move: self._response(measure, move) for move in self.preserving},
            on_function_alone=on_function_alone,
            unexplored=self.unexplored,
        )
        sizes = [move for move in self.moved if move in CONFIDENCE_ONLY]
        reasons = [why for move, why in self.absent.items() if move in CONFIDENCE_ONLY]
        confidence = confidence_answer(
            {move: self._response(measure, move) for move in sizes}, "; ".join(reasons)
        )
        return joined(scale, confidence)

    def _response(self, measure: str, move: str) -> float | None:
        """The worst factor of a move; 1 if nothing changed, None if errors could hide a change."""
        outcomes = self._outcomes(measure, move)
        factor = self.factor(measure, move)
        if True in outcomes and (None not in outcomes or not is_small(factor)):
            return factor
        return 1.0 if set(outcomes) == {False} else None

    def _outcomes(self, measure: str, move: str) -> list[bool | None]:
        before = self.original[measure]
        return [differs(before, after) for after in self.draws_of(measure, move)]

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """The verdict on every measure."""
        return {measure: self.verdict(measure) for measure in self.original}

    def confounders(self) -> dict[str, Measurement]:
        """What differs between networks without being flatness, as far as it exists here."""
        return {name: self.original[name] for name in MEASURED_ALONG if name in self.original}

    # -- writing -----------------------------------------------------------------------------

    def describe(self) -> list[Part]:
        """A row for each measure: its value, what the moves did to it, and the verdict."""
        columns = [
            Column("measure"),
            Column("value", digits=SHORT, wide=True),
            *(Column(move, group="moves") for move in self.moved),
            *(Column(question, kind="word", group="answers") for question in ANSWERS),
            Column("verdict", kind="word"),
        ]
        rows: list[list[Cell]] = []
        for measure, verdict in self.verdicts.items():
            cells = (cell(self, measure, move) for move in self.moved)
            value = self.original[measure].with_errors
            rows.append([measure, value, *cells, *answers(verdict), verdict.kind])
        return [Table(columns, rows, id="verdict-table"), Text(self.findings(), bullets=True)]

    def findings(self) -> list[str]:
        """What the table shows, in sentences."""
        lines = [
            "Numbers under a transformation are factors, the farthest from 1 of all draws; = is "
            f"unchanged within an error of at most {HIDING:.0%}, ? is not decided."
        ]
        if self.measured_on:
            lines.append(
                f"Values and factors are those of {self.measured_on}; that the function stays the "
                "same was verified on all."
            )
        if self.left_out:
            dear = ", ".join(
                f"{name} (about {number(cost, ERROR)})" for name, cost in self.left_out.items()
            )
            lines.append(
                f"Left out, in forward-backwards beyond the budget: {dear}. Name them, or raise "
                "the budget."
            )
        lines += [f"{move}: {text}." for move, text in self.moves.items()]
        lines += self.not_made()
        if not self.preserving:
            lines.append(
                "No symmetry was found, so the audit cannot show that a number is misleading."
            )
        lines += self.not_tested()
        by_kind: dict[Kind, list[str]] = {}
        for measure, verdict in self.verdicts.items():
            by_kind.setdefault(verdict.kind, []).append(measure)
        for kind, text in WORDS.items():
            if kind in by_kind:
                text = f"{text} ({REFINE})" if kind == "open" else text
                lines.append(f"{text[0].upper()}{text[1:]}: {', '.join(by_kind[kind])}.")
        sizes = [m for m, v in self.verdicts.items() if v.kind in ("nearly", "scale")]
        following = [m for m in sizes if self.verdict(m).confidence.kind == "changes"]
        if following:
            lines.append(f"These follow the size of the logits as well: {', '.join(following)}.")
        for name, m in self.confounders().items():
            lines.append(self._confounder(name, m))
        return lines

    def not_made(self) -> list[str]:
        """The moves that do not apply to this network, and why."""
        return [
            f"{move} does not apply to this network: {why}." for move, why in self.absent.items()
        ]

    def not_tested(self) -> list[str]:
        """Which symmetries may have been missed; empty if none."""
        return [f"Not all symmetries were tested: {self.unexplored}."] if self.unexplored else []

    def _confounder(self, name: str, m: Measurement) -> str:
        changes = [
            f"{number(self.factor(name, move), FACTOR)} times under {move}"
            for move in self.moved
            if self.has_moved(name, move)
        ]
        open_ = [move for move in self.moved if self.has_moved(name, move) is None]
        changes += [f"not decided under {move}" for move in open_]
        text = f"The {MEASURED_ALONG[name]} ({name}) is {number(m.with_errors, SHORT)}"
        return f"{text}; {', '.join(changes) or 'no move that was tried changes it'}."

    def to_dict(self) -> dict[str, Any]:
        """The audit in plain types, ready for JSON, with its verdicts."""
        return super().to_dict() | {"verdicts": to_plain(self.verdicts)}

    def check_parts(self) -> None:
        """Refuse moves without draws, and draws without a measure of the original."""
        for move, reports in self.moved.items():
            if not reports:
                raise Misread(f"the audit has no draws under {move!r}")
            if missing := [name for name in self.original if not self.draws_of(name, move)]:
                raise Misread(f"the audit has no {missing[0]!r} under {move!r}")


def cell(audit: Audit, measure: str, move: str) -> str:
    """A factor as the table shows it."""
    outcome = audit.has_moved(measure, move)
    if outcome is None:
        return "?"
    return number(audit.factor(measure, move), FACTOR) if outcome else "="


def answers(verdict: Verdict) -> list[Cell]:
    """Those behind a verdict, as a table shows them; a confounder is asked for none."""
    if verdict.kind == "confounder":
        return [None, None]
    return [verdict.scale.kind, verdict.confidence.kind]


def differs(before: Measurement, after: Measurement) -> bool | None:
    """Whether a number changed; None where its errors leave that open."""
    apart = abs(after.value - before.value)
    largest = max(abs(before.value), abs(after.value))
    errors = _error(before, after)
    if not math.isfinite(apart):
        return None
    if apart <= UNCHANGED * largest:  # the same random numbers met both: errors do not matter
        return False
    if apart > errors:
        return True
    return False if errors <= HIDING * largest else None


def ratio(before: float, after: float) -> float:
    """What a number was multiplied by; infinite where it was 0 before."""
    if before == after:
        return 1.0
    return after / before if before else math.inf


def _error(one: Measurement, other: Measurement) -> float:
    """How far apart two values of the same number may be: 3 standard errors, and the residuals."""
    if Status.NONFINITE in (one.status, other.status):
        return math.inf
    spread = 3 * math.hypot(one.stderr or 0.0, other.stderr or 0.0)
    return spread + (one.residual or 0.0) + (other.residual or 0.0)
