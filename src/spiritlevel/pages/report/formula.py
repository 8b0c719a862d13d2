r"""A card's LaTeX as HTML that reads well without a typesetter: letters, subscripts, fractions.

Not MathML by latex2mathml: it prints `\bigl\|` with its backslash, and its formulas neither wrap
on a phone nor look right where no font for mathematics is installed.
"""

from __future__ import annotations

import html
import re

TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[{}^_]|\s+|[^\\{}^_\s]+")
SPACES = {r"\,", r"\;", r"\ ", r"\quad"}
SILENT = {r"\bigl", r"\bigr", r"\Bigl", r"\Bigr", r"\left", r"\right", r"\textstyle", r"\!"}
NAMED = {r"\operatorname", r"\mathrm", r"\text", r"\mathbb"}  # upright words in braces
# fmt: off
LETTERS = {
    "alpha": "α", "beta": "β", "delta": "δ", "eta": "η", "theta": "θ", "kappa": "κ",
    "lambda": "λ", "xi": "ξ", "pi": "π", "rho": "ρ", "sigma": "σ", "phi": "φ", "psi": "ψ",
    "varepsilon": "ε", "Delta": "Δ", "nabla": "∇", "partial": "∂", "ell": "ℓ", "sum": "∑",
    "int": "∫", "le": "≤", "ne": "≠", "in": "∈", "sim": "∼", "cdot": "·", "otimes": "⊗",
    "langle": "⟨", "rangle": "⟩", "top": "⊤", "max": "max", "min": "min", "sup": "sup",
    "log": "log", "ln": "ln",
}
# fmt: on
MARKS = {r"\|": "‖", r"\{": "{", r"\}": "}", r"\#": "#"}
ACCENTS = {r"\bar": "\u0304", r"\hat": "\u0302"}  # combining: they follow their letter


def to_html(latex: str) -> str:
    r"""The formula as escaped HTML; what is not known stays as it was written.

    >>> to_html(r"\operatorname{Tr} \nabla^2_\theta L")
    'Tr ∇<sup>2</sup><sub>θ</sub> L'
    >>> to_html(r"\tfrac{\kappa}{2m} < \unknown")
    'κ/(2m) &lt; \\unknown'
    """
    tokens = TOKEN.findall(latex)
    parts = []
    while tokens:
        parts.append(_next(tokens))
    return re.sub(r"\s+", " ", "".join(parts)).strip()


def _next(tokens: list[str]) -> str:
    token = tokens.pop(0)
    if token == "{":
        inside = []
        while tokens and tokens[0] != "}":
            inside.append(_next(tokens))
        del tokens[:1]
        return "".join(inside)
    if token in "^_":
        tag = "sup" if token == "^" else "sub"
        return f"<{tag}>{_argument(tokens)}</{tag}>"
    if token in (r"\frac", r"\tfrac"):
        above, below = _argument(tokens), _argument(tokens)
        return f"{_grouped(above)}/{_grouped(below)}"
    if token == r"\sqrt":
        return f"√{_grouped(_argument(tokens))}"
    if token in ACCENTS:
        return f"{_argument(tokens)}{ACCENTS[token]}"
    if token in NAMED:
        return _argument(tokens)
    if token in SPACES or token.isspace():
        return " "
    if token in SILENT:
        return ""
    return MARKS.get(token) or LETTERS.get(token[1:]) or html.escape(token)


def _argument(tokens: list[str]) -> str:
    """What a command or a script applies to: a group, or a single letter."""
    while tokens and tokens[0].isspace():
        tokens.pop(0)
    if tokens and len(tokens[0]) > 1 and tokens[0][0] != "\\":
        word = tokens.pop(0)
        tokens.insert(0, word[1:])
        return html.escape(word[0])
    return _next(tokens) if tokens else ""


def _grouped(text: str) -> str:
    return text if len(text) == 1 or text.isdigit() else f"({text})"
