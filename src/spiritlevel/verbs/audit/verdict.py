"""What the moves say about one measure: one answer about scale, one about confidence."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Literal

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
        tried = f"{factor:.3g} times under {worst}"
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
        return Answer("changes", f"{factors[worst]:.3g} times under {worst}")
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
