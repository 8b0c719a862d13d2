"""Words that stop a reader of the field, each with what to write instead.

Whatever a user reads can be asked: `avoided(text)` for prose, `prose(page)` for a page of Markdown.
"""

import re

WORDS = {
    r"bends?|bending|bent": "are nonlinear (not piecewise linear)",
    r"mend(s|ed|ing)?": "fix",
    r"held against": "compared with",
    r"surer": "more confident",
    r"(an?|each|every|the|this|that|no|other|these|those|of) moves?": "transformation, symmetry",
    r"(the )?other way round": "in the opposite order",
    r"forwards|(?<!-)backwards": "forward passes, backward passes",
    r"rises? of the loss|rises? in the loss": "loss increase",
    r"spoil(s|ed|ing)?": "make fail",
    r"d(id|o|oes) no harm": "say what did not change",
    r"paid in weights": "by growing its weights",
    r"undecided of": "uncertain",
    r"said once": "the warning is not repeated",
    r"really rounded": "quantized",
    r"paper 00\d|(?<![\d,.])00[0-4]": "author and year",
}
PATTERN = re.compile(
    "|".join(rf"(?P<w{n}>\b(?:{word})(?!\w))" for n, word in enumerate(WORDS)), re.I
)
HEADING = re.compile(r"^#+ (?:Define|Install|Keep|Look at|Measure|Run|Save) it\b.*", flags=re.M)
NOT_PROSE = re.compile(
    r"^( *)```.*?^\1```|`[^`\n]*`|\]\([^)]*\)|<!--.*?-->|^\$\$.*?\$\$|\$[^$\n]+\$",
    flags=re.M | re.S,
)


def prose(page):
    """What is left of a page without code, formulas and the targets of links."""
    return NOT_PROSE.sub(" ", page)


def avoided(text):
    """`word: instead` for everything in a text that should be said in another way."""
    text = " ".join(text.split())
    found = [(each[0], int(each.lastgroup[1:])) for each in PATTERN.finditer(text)]
    return [f"{word}: {list(WORDS.values())[n]}" for word, n in found]
