"""Notebooks as pages of the site, with the outputs stored in them."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

from mkdocs.structure.files import File, Files


def on_files(files: Files, config: Any) -> Files:
    """Add a page for every notebook."""
    for path in sorted(pathlib.Path(config.docs_dir).glob("notebooks/*.ipynb")):
        made = markdown(json.loads(path.read_text(encoding="utf-8")), path.name)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=made))
    return files


def on_page_markdown(text: str, **_: Any) -> str:
    """Lead readers of the site to these pages; the files lead to the notebooks."""
    return re.sub(r"\]\(((?:(?:\.\./)?notebooks/)?[\w-]+)\.ipynb\)", r"](\1.md)", text)


def markdown(book: dict[str, Any], name: str) -> str:
    """The cells of a notebook in order, each with its outputs below it."""
    parts = []
    for cell in book["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        parts += [_shown(output) for output in cell["outputs"]]
    file = f'<p><a href="{name}" download>Download this notebook</a></p>'
    return "\n\n".join([parts[0], file, *parts[1:]]) + "\n"


def _shown(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return f'<p><img alt="Figure" src="data:image/png;base64,{data["image/png"]}"></p>'
    if "text/html" in data:
        return f'<div class="output">{"".join(data["text/html"])}</div>'
    text = "".join(data.get("text/plain") or output["text"]).rstrip()
    return f"```text\n{text}\n```"
