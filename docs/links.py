"""Every link of the built site leads somewhere: to a file, and to an anchor that is in it.

mkdocs looks at links in Markdown. This looks at what became of them, and at what others wrote:
menus, the API made from docstrings, pictures, raw HTML. Links to other sites are not followed, only
read.
"""

from __future__ import annotations

import functools
import html.parser
import pathlib
import urllib.parse
from typing import Any

from mkdocs.exceptions import PluginError


class _Page(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value is not None:
                self.links.add(value)
            elif (name == "id" or (tag == "a" and name == "name")) and value:
                self.anchors.add(value)


def on_post_build(config: Any) -> None:
    """Stop the build at links that lead nowhere, and name all of them."""
    if pathlib.Path(config.docs_dir).name != "docs":
        return  # a second site below the first, which looks at both
    if found := broken(pathlib.Path(config.site_dir)):
        raise PluginError("Links that lead nowhere:\n" + "\n".join(found))


def broken(site: pathlib.Path) -> list[str]:
    """`page: link: reason` for every link that leads nowhere."""
    read = functools.cache(lambda path: _Page(path.read_text(encoding="utf-8")))
    found = []
    for path in sorted(site.rglob("*.html")):
        for link in sorted(read(path).links):
            if reason := _problem(link, path, site, read):
                found.append(f"{path.relative_to(site)}: {link[:200]}: {reason}")
    return found


def _problem(link: str, page: pathlib.Path, site: pathlib.Path, read: Any) -> str:
    if link != link.strip() or " " in link:
        return "a blank in an address"
    parts = urllib.parse.urlsplit(link)
    if parts.scheme == "data":
        return ""
    if parts.scheme or parts.netloc:
        return _problem_elsewhere(parts)
    target = page if not parts.path else page.parent / urllib.parse.unquote(parts.path)
    if page.name == "404.html" and parts.path.startswith("/"):
        target = site / parts.path.lstrip("/")  # it is shown at any depth
    if not target.is_file() and not (target / "index.html").is_file():
        return "there is no such file"
    anchor = urllib.parse.unquote(parts.fragment)
    if anchor and target.suffix == ".html" and anchor not in read(target.resolve()).anchors:
        return "there is no such anchor"
    return ""


def _problem_elsewhere(parts: urllib.parse.SplitResult) -> str:
    if parts.scheme != "https":
        return "not https"
    return "" if "." in parts.netloc else "no host"
