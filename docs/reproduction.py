"""The pages of the reproductions as a second site, below the first, with links both ways.

In the repository the pages of both link to each other's Markdown. The sites hold HTML instead.
"""

from __future__ import annotations

import pathlib
import posixpath
import re
from typing import Any

from mkdocs.commands.build import build
from mkdocs.config import load_config

ROOT = pathlib.Path(__file__).parents[1]
OWN = "mkdocs-reproduction.yml"
# What stands in Markdown for the other site, and what stands in its place in the built ones.
TO = {"docs": ("reproduction/", "reproduction/"), "reproduction": ("docs/", "")}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((\.\./[^)\s]+)\)")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Write links to the other site as HTML, which mkdocs leaves alone; links.py reads them."""
    named, built = TO[pathlib.Path(config.docs_dir).name]
    up = "" if named == "reproduction/" else "../"
    here = posixpath.dirname(page.file.src_uri)

    def rewritten(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("x", here, found[3]))
        if not target.startswith(named):
            return found[0]
        path = posixpath.relpath(up + built + target.removeprefix(named), here or ".")
        path = re.sub(r"\.md(?=#|$)", ".html", path)
        if found[1]:
            return f'<img alt="{found[2]}" src="{path}">'
        return f'<a href="{path}">{found[2]}</a>'

    return LINK.sub(rewritten, markdown)


def on_post_build(config: Any) -> None:
    """Build the second site into a folder of the first."""
    if pathlib.Path(config.docs_dir).name == "docs":
        folder = pathlib.Path(config.site_dir) / "reproduction"
        build(load_config(str(ROOT / OWN), strict=config.strict, site_dir=str(folder)))
        (folder / "404.html").unlink()  # the first site has one
