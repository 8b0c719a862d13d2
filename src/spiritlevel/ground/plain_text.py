"""Text from outside, made harmless for where it is shown: a terminal, a table of a spreadsheet."""

from __future__ import annotations

import re

# What a terminal or a page obeys and does not show: control characters, marks that turn the
# direction of writing, invisible characters, line separators, and halves of characters.
_OBEYED = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # with which a spreadsheet begins to calculate


def visible(text: str, *, keep: str = "") -> str:
    r"""The text with escapes in place of what would be obeyed; characters in `keep` stay.

    >>> print(visible("red \x1b[31m, then\na line"))
    red \x1b[31m, then\na line
    """

    def shown(one: re.Match[str]) -> str:
        return one[0] if one[0] in keep else one[0].encode("unicode_escape").decode("ascii")

    return _OBEYED.sub(shown, text)


def cell(value: object) -> object:
    """A value for a CSV file: a spreadsheet shows a text that looks like a formula as text.

    >>> cell("=1+1"), cell("-0.5"), cell(-0.5), cell("sgd")
    ("'=1+1", '-0.5', -0.5, 'sgd')
    """
    if isinstance(value, str) and value.lstrip(" ").startswith(_FORMULA) and not _is_number(value):
        return f"'{value}"
    return value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return not text.startswith(("\t", "\r"))
