"""Sentences of a recipe, with numbers in the place of their fields.

After a colon a field may have the name of a phrase, which says in words what a number does.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from typing import Any

from spiritlevel.records.content import plain

from ...claims.contrasts import falls, rises


def filled(sentence: str, fields: Mapping[str, Any]) -> str:
    """The sentence with these numbers and names."""
    return _WITH_PHRASES.vformat(sentence, (), fields)


def _moves(number: Any) -> str:
    if rises(number):
        return "rises"
    return "falls" if falls(number) else "does not clearly rise or fall"


def trend(number: Any) -> str:
    """Whether the number rises, falls or does not clearly move, with the correlation."""
    verb = "rises" if rises(number) else "falls" if falls(number) else "does not clearly move"
    return f"{verb} (Spearman {number})"


def counted_trend(number: Any) -> str:
    """What `trend` says, with the number of runs."""
    return f"{trend(number)[:-1]}, n = {number.n})"


def _against_the_claim(number: Any) -> str:
    """A change that the claim expects below 0; if it contradicts the claim, that comes first."""
    if rises(number):
        return f"is higher, the reverse of the claim: it changes by {number}"
    return f"changes by {number}"


def _opposite_or_absent(number: Any) -> str:
    """Which of both a trend is that is not the same; nothing of one that may be."""
    if falls(number):
        return "The trend is opposite, not absent."
    clear = (
        "" if rises(number) else "There is no clear trend, neither the same nor an opposite one."
    )
    return clear if number.n > 1 else ""


def _three_digits(number: Any) -> str:
    return plain(number, 3)


PHRASES: dict[str, Callable[[Any], str]] = {
    "moves": _moves,
    "trend": trend,
    "counted trend": counted_trend,
    "lower, as claimed": _against_the_claim,
    "opposite or absent": _opposite_or_absent,
    "3 digits": _three_digits,
}


class _WithPhrases(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec in PHRASES:
            return PHRASES[format_spec](value)
        return str(super().format_field(value, format_spec))


_WITH_PHRASES = _WithPhrases()
