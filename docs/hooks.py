"""What mkdocs cannot do by itself: formulas without a typesetter from elsewhere, generated pages.

The pages hold LaTeX between `$$`, which code hosts typeset themselves; the built pages get HTML.
Pages of experiments are written by a program, so the navigation takes those that are there.
"""

import pathlib
import re
from typing import Any

from spiritlevel.pages.report.formula import to_html

DOCS = pathlib.Path(__file__).parent


def on_config(config: Any) -> Any:
    """Append the experiments to the navigation."""
    found = [DOCS / "experiments.md", *sorted((DOCS / "experiments").glob("*.md"))]
    pages = [str(page.relative_to(DOCS)) for page in found if page.is_file()]
    if pages:
        config.nav = [*config.nav, {"Experiments": pages}]
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace every `$$ … $$` of a page."""
    return re.sub(r"\$\$(.+?)\$\$", _as_html, markdown)


def _as_html(found: re.Match[str]) -> str:
    return f'<p class="formula">{to_html(found[1].strip())}</p>'
