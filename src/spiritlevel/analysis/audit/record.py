"""The numbers before and after every move of an audit, and what follows from them."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, Literal

from ...measures.confounders import MEASURED_ALONG
from ...plain_text import visible
from ...reading import Misread, read_as
from ...records import Measurement, Report, Status, aligned, read_json
from ...symmetries import CONFIDENCE_ONLY

Kind = Literal["comparable", "confidence", "nearly", "scale", "open", "confounder"]

FORMAT = "spiritlevel-audit-1"
UNCHANGED = 0.01  # relative: what rounding may do to weights multiplied by up to 25
# Relative: a wider error would hide what moves do to some measures, 1.3 to 1.5 times. Two estimates
# that are refined to the usual 5 % come to 0.108.
HIDING = 0.12
NEARLY = 2.0  # a factor that matters little beside those on the weights
WORDS: dict[Kind, str] = {
    "comparable": "comparable between networks: no move found in this network changes it",
    "confidence": "comparable at equal confidence: it follows the size of the logits",
    "nearly": "nearly comparable: factors of 5 to 25 on the weights change it less than twofold",
    "scale": "not comparable: it changes although the network's function stays the same",
    "open": "not decided: its error could hide what the moves do to it",
    "confounder": "not a flatness measure; shown for context",
}
UNTRIED = "not decided: no move could be tried"
REFINE = "lower rtol, raise max_passes or use more samples"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether a measure can be compared between networks like this one, and why."""

    kind: Kind
    text: str


class Audit:
    """The values before and after every move, and what they show."""

    def __init__(
        self,
        original: Report,
        moved: Mapping[str, Report],
        *,
        moves: Mapping[str, str],
        absent: Mapping[str, str],
    ) -> None:
        """`moves` describes what was done, `absent` why other moves do not apply to the network."""
        self.original, self.moved = original, dict(moved)
        self.moves, self.absent = dict(moves), dict(absent)

    @property
    def preserving(self) -> list[str]:
        """The moves that leave the function as it is."""
        return [move for move in self.moved if move not in CONFIDENCE_ONLY]

    def factor(self, measure: str, move: str) -> float:
        """What the number was multiplied by; infinite where it was 0 before."""
        before, after = self.original[measure].value, self.moved[move][measure].value
        if before == after:
            return 1.0
        return after / before if before else math.inf

    def has_moved(self, measure: str, move: str) -> bool | None:
        """Whether the number changed; None where its errors leave that open."""
        before, after = self.original[measure], self.moved[move][measure]
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

    def verdict(self, measure: str) -> Verdict:
        """What the moves say about this measure, in a sentence."""
        if measure in MEASURED_ALONG:
            return Verdict("confounder", WORDS["confounder"])
        outcomes = {move: self.has_moved(measure, move) for move in self.preserving}
        moving = [move for move, outcome in outcomes.items() if outcome]
        unknown = [move for move, outcome in outcomes.items() if outcome is None]
        if moving:
            worst = max(moving, key=lambda move: _strength(self.factor(measure, move)))
            factor = self.factor(measure, worst)
            kind: Kind = "nearly" if 1 / NEARLY < factor < NEARLY else "scale"
            if kind == "scale" or not unknown:
                return Verdict(kind, f"{WORDS[kind]} ({factor:.3g} times under {worst})")
        if not self.moved:
            return Verdict("open", UNTRIED)
        sizes = {m: self.has_moved(measure, m) for m in CONFIDENCE_ONLY if m in self.moved}
        following = [move for move, outcome in sizes.items() if outcome]
        if not following:
            unknown += [move for move, outcome in sizes.items() if outcome is None]
        if unknown:
            return Verdict("open", f"{WORDS['open']} ({', '.join(unknown)}); {REFINE}")
        if following:
            by = f"{self.factor(measure, following[0]):.3g} times under {following[0]}"
            return Verdict("confidence", f"{WORDS['confidence']} ({by})")
        return Verdict("comparable", WORDS["comparable"])

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """The verdict on every measure."""
        return {measure: self.verdict(measure) for measure in self.original}

    def confounders(self) -> dict[str, Measurement]:
        """What differs between networks without being flatness, as far as it exists here."""
        return {name: self.original[name] for name in MEASURED_ALONG if name in self.original}

    # -- writing -----------------------------------------------------------------------------

    def __str__(self) -> str:
        rows = [("measure", "value", *self.moved, "verdict")]
        for measure, verdict in self.verdicts.items():
            cells = (cell(self, measure, move) for move in self.moved)
            rows.append((measure, f"{self.original[measure].value:.4g}", *cells, verdict.kind))
        return visible("\n".join([aligned(rows), "", *self.findings()]), keep="\n")

    def findings(self) -> list[str]:
        """What the table shows, in sentences."""
        lines = [
            "Numbers under a move are factors; = is unchanged within an error of at most "
            f"{HIDING:.0%}, ? is not decided."
        ]
        lines += [f"{move}: {text}." for move, text in self.moves.items()]
        lines += [
            f"{move} does not apply to this network: {why}." for move, why in self.absent.items()
        ]
        if not self.preserving:
            lines.append(
                "No symmetry was found, so the audit cannot show that a number is misleading."
            )
        by_kind: dict[Kind, list[str]] = {}
        for measure, verdict in self.verdicts.items():
            by_kind.setdefault(verdict.kind, []).append(measure)
        for kind, text in WORDS.items():
            if kind in by_kind:
                if kind == "open":
                    text = f"{text} ({REFINE})" if self.moved else UNTRIED
                lines.append(f"{text[0].upper()}{text[1:]}: {', '.join(by_kind[kind])}.")
        for name, m in self.confounders().items():
            lines.append(self._confounder(name, m))
        return lines

    def _confounder(self, name: str, m: Measurement) -> str:
        changes = [
            f"{self.factor(name, move):.3g} times under {move}"
            for move in self.moved
            if self.has_moved(name, move)
        ]
        open_ = [move for move in self.moved if self.has_moved(name, move) is None]
        changes += [f"not decided under {move}" for move in open_]
        text = f"The {MEASURED_ALONG[name]} ({name}) is {m.value:.4g}"
        return f"{text}; {', '.join(changes) or 'no move that was tried changes it'}."

    def to_dict(self) -> dict[str, Any]:
        """The audit in plain types, ready for JSON."""
        return {
            "format": FORMAT,
            "original": self.original.to_dict(),
            "moved": {move: report.to_dict() for move, report in self.moved.items()},
            "moves": self.moves,
            "absent": self.absent,
            "verdicts": {n: dataclasses.asdict(v) for n, v in self.verdicts.items()},
        }

    def to_json(self, *, indent: int | None = 2) -> str:
        """As JSON text; `Audit.from_json` reads it back."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Audit:
        """Read what `to_json` wrote."""
        return read_json(text, "Audit", FORMAT, cls._from_dict)

    @classmethod
    def _from_dict(cls, data: Mapping[str, Any]) -> Audit:
        moved = read_as(Mapping[str, Any], data["moved"], "the audit's moved")
        original = Report.from_dict(data["original"])
        reports = {move: Report.from_dict(report) for move, report in moved.items()}
        for move, report in reports.items():
            if missing := [name for name in original if name not in report]:
                raise Misread(f"the audit has no {missing[0]!r} under {move!r}")
        return cls(
            original,
            reports,
            moves=read_as(Mapping[str, str], data["moves"], "the audit's moves"),
            absent=read_as(Mapping[str, str], data["absent"], "the audit's absent"),
        )


def cell(audit: Audit, measure: str, move: str) -> str:
    """A factor as the table shows it."""
    outcome = audit.has_moved(measure, move)
    if outcome is None:
        return "?"
    return f"{audit.factor(measure, move):.3g}" if outcome else "="


def _strength(factor: float) -> float:
    """How far from 1 a factor is; nothing is further than 0 and infinity."""
    return abs(math.log(abs(factor))) if factor and math.isfinite(factor) else math.inf


def _error(one: Measurement, other: Measurement) -> float:
    """How far apart two values of the same number may be: 3 standard errors, and the residuals."""
    if Status.NONFINITE in (one.status, other.status):
        return math.inf
    spread = 3 * math.hypot(one.stderr or 0.0, other.stderr or 0.0)
    return spread + (one.residual or 0.0) + (other.residual or 0.0)
