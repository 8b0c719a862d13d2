"""What mkdocs cannot do by itself: formulas and anchors that need no script.

The pages hold LaTeX between `$` or `$$`, which code hosts typeset themselves; the built pages hold
MathML, which browsers typeset.
"""

import html
import re
from typing import Any

from latex2mathml.converter import convert
from markdown.extensions import toc

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', flags=re.DOTALL)


def on_config(config: Any) -> Any:
    """Headings that begin with a number get anchors that do not: those are no selectors."""
    config.mdx_configs["toc"]["slugify"] = anchor
    return config


def anchor(heading: str, separator: str) -> str:
    """The anchor of a heading."""
    made: str = toc.slugify(heading, separator)
    return f"_{made}" if made[:1].isdigit() else made


def on_page_content(content: str, **_: Any) -> str:
    """Replace every formula of a page."""
    return FORMULA.sub(_as_mathml, content)


def _as_mathml(found: re.Match[str]) -> str:
    latex = html.unescape(found[2]).strip()
    shown = "inline" if found[1] == "span" else "block"
    made = convert(latex, display=shown).replace(r">\|<", ">‖<")  # what \bigl leaves as it is
    return made if shown == "inline" else f'<div class="formula">{made}</div>'
