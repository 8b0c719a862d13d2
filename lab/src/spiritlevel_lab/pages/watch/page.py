"""What the server hands out besides the state: the page, its scripts and styles, all from here."""

from __future__ import annotations

import dataclasses
from importlib import resources

from spiritlevel.pages.report import scripts
from spiritlevel.pages.report.page import LOGO

HTML, CSS, JAVASCRIPT = "text/html", "text/css", "text/javascript"
OF_THE_REPORT = ("page.css", "early.js", "page.js")  # colours, tables, pictures: one look for both
OWN = ("watch.css", "watch.js", "dom.js", "study.js", "monitor.js")


@dataclasses.dataclass(frozen=True)
class Content:
    """An answer's body and its kind."""

    kind: str
    body: bytes


def contents() -> dict[str, Content]:
    """Everything the server hands out, by address. No address is ever looked up on the disk."""
    page = _own("watch.html").replace("<!-- logo -->", LOGO)
    contents_by_address = {
        "/": _content(HTML, page),
        "/plotly.js": _content(JAVASCRIPT, scripts.plotly()),
    }
    texts = {name: scripts.asset(name) for name in OF_THE_REPORT}
    texts |= {name: _own(name) for name in OWN}
    for name, text in texts.items():
        contents_by_address[f"/assets/{name}"] = _content(
            CSS if name.endswith(".css") else JAVASCRIPT, text
        )
    return contents_by_address


def _own(name: str) -> str:
    return (resources.files(__package__) / "assets" / name).read_text("utf-8")


def _content(kind: str, text: str) -> Content:
    return Content(f"{kind}; charset=utf-8", text.encode())
