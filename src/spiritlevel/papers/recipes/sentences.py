"""Sentences of a recipe, with numbers in the place of their fields.

After a colon a field may have the name of a phrase, which says in words what a number does.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from typing import Any

from ...content import plain
from ..judging.contrasts import falls, rises


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
    """The same with the number of runs."""
    return f"{trend(number)[:-1]}, n = {number.n})"


def _against_the_claim(number: Any) -> str:
    """A change that the claim expects below 0; if it contradicts the claim, that comes first."""
    if rises(number):
        return f"is higher, the reverse of the claim: it changes by {number}"
    return f"changes by {number}"


def _three_digits(number: Any) -> str:
    return plain(number, 3)


PHRASES: dict[str, Callable[[Any], str]] = {
    "moves": _moves,
    "trend": trend,
    "counted trend": counted_trend,
    "lower, as claimed": _against_the_claim,
    "3 digits": _three_digits,
}


class _WithPhrases(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec in PHRASES:
            return PHRASES[format_spec](value)
        return str(super().format_field(value, format_spec))


_WITH_PHRASES = _WithPhrases()
