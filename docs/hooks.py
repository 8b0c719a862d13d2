"""What mkdocs cannot do by itself: formulas without a typesetter, search in a folder of files.

The pages hold LaTeX between `$$`, which code hosts typeset themselves; the built pages get HTML.
The theme's search needs a server; `search.js` and an index that is a script do without.
"""

import html
import json
import pathlib
import re
from typing import Any

from markdown.extensions import toc

from spiritlevel.pages.report.formula import to_html

DOCS = pathlib.Path(__file__).parent


def on_config(config: Any) -> Any:
    """Headings that begin with a number get anchors that do not.

    The theme asks for `#1-a-first-number` as a selector, which is none, and its script ends there.
    """
    config.mdx_configs["toc"]["slugify"] = anchor
    return config


def anchor(heading: str, separator: str) -> str:
    """The anchor of a heading."""
    made: str = toc.slugify(heading, separator)
    return f"_{made}" if made[:1].isdigit() else made


def on_post_build(config: Any) -> None:
    """Replace the theme's search by one that needs no server."""
    folder = pathlib.Path(config.site_dir) / "search"
    index = json.loads((folder / "search_index.json").read_text(encoding="utf-8"))
    entries = [
        {"location": doc["location"], "title": html.unescape(doc["title"])}
        | {"text": html.unescape(" ".join(doc["text"].split()))}
        for doc in index["docs"]
    ]
    lines = "\n".join(f"{json.dumps(entry, ensure_ascii=False)}," for entry in entries)
    lower = "doc.lowTitle = doc.title.toLowerCase(); doc.lowText = doc.text.toLowerCase();"
    script = (
        f"window.spiritlevelIndex = [\n{lines}\n];\n"
        f"for (const doc of window.spiritlevelIndex) {{ {lower} }}\n"
    )
    (folder / "index.js").write_text(script, encoding="utf-8")
    (folder / "main.js").write_text((DOCS / "search.js").read_text("utf-8"), encoding="utf-8")
    for unused in ("search_index.json", "worker.js", "lunr.js"):
        (folder / unused).unlink()


def on_post_page(output: str, **_: Any) -> str:
    """Two empty styles that the theme's switch of colours turns on and off.

    They are those of a highlighter that is not used here; without them the switch raises an error.
    """
    styles = "".join(f'<style id="hljs-{mode}"></style>' for mode in ("light", "dark"))
    return output.replace("</head>", f"{styles}</head>", 1)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace every `$$ … $$` of a page."""
    return re.sub(r"\$\$(.+?)\$\$", _as_html, markdown)


def _as_html(found: re.Match[str]) -> str:
    return f'<p class="formula">{to_html(found[1].strip())}</p>'
