"""Characters that a terminal or a pipe cannot show, spelled in ones that it can.

On Windows a pipe takes the characters of one country, which seldom include Greek letters or a minus
sign. Python then raises an error in the middle of a result.
"""

from __future__ import annotations

import codecs
import unicodedata
from typing import TextIO

HANDLER = "spiritlevel.spelled"
# Where the closest letters of Unicode's own table would mislead, or there are none.
SPELLED = {"−": "-", "–": "-", "—": "-", "⁻": "-", "─": "-", "±": "+-", "×": "x", "·": "*"}
SPELLED |= {
    "≤": "<=",
    "≥": ">=",
    "≠": "!=",
    "≈": "~",
    "→": "->",
    "∞": "inf",
    "√": "sqrt ",
    "•": "-",
}
SPELLED |= {"‖": "|", "⟨": "<", "⟩": ">", "∂": "d", "∇": "grad ", "∫": "int ", "∘": "*", "⊗": "(x)"}
SPELLED |= {"∗": "*", "÷": "/", "∑": "sum ", "∈": "in", "∼": "~", "⊤": "T", "½": "1/2", "¼": "1/4"}
SPELLED |= {"λ": "lambda"}  # Unicode writes lamda


def spell_what_cannot_be_shown(*streams: TextIO) -> None:
    """From now on, such a character is spelled instead of being an error."""
    codecs.register_error(HANDLER, _handle)
    for stream in streams:
        encoding = getattr(stream, "encoding", None) or "utf-8"
        if hasattr(stream, "reconfigure") and codecs.lookup(encoding).name != "utf-8":
            stream.reconfigure(errors=HANDLER)


def spelled(character: str) -> str:
    """The character in ASCII.

    >>> spelled("κ"), spelled("≤"), spelled("é"), spelled("漢")
    ('kappa', '<=', 'e', '?')
    """
    if character in SPELLED or unicodedata.combining(character):
        return SPELLED.get(character, "")
    words = unicodedata.name(character, "?").split()
    if words[0] == "GREEK" and words[2:3] == ["LETTER"]:
        return words[-1].lower() if words[1] == "SMALL" else words[-1].capitalize()
    parts = unicodedata.normalize("NFKD", character)
    return parts.encode("ascii", "ignore").decode("ascii") or "?"


def _handle(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(spelled, error.object[error.start : error.end])), error.end
