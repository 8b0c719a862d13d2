"""What a page runs: scripts that are listed by their hash, and data that cannot end its script."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any

from ...content import finite
from ...errors import SpiritlevelError, brief, require


def asset(name: str) -> str:
    """The text of a file in assets/."""
    return (resources.files(__package__) / "assets" / name).read_text("utf-8")


def plotly() -> str:
    """The plotting library, as the plotly package ships it."""
    package = require("plotly", what="An HTML page", extra="report")
    source = (resources.files(package) / "package_data" / "plotly.min.js").read_text("utf-8")
    return _embeddable(source)


def kinds(names: Iterable[str]) -> list[str]:
    """The scripts that draw these kinds of figures, each once."""
    sources = []
    for name in sorted(set(names)):
        try:
            sources.append(asset(f"kinds/{name}.js"))
        except FileNotFoundError as error:
            raise SpiritlevelError(
                f"A Figure must be of a kind that report/assets/kinds draws. Got {brief(name)}. "
                f"Add kinds/{name}.js there."
            ) from error
    return sources


def script(source: str) -> str:
    """An inline script."""
    return f"<script>{source}</script>"


def policy(sources: Iterable[str]) -> str:
    """What the page may do: run exactly these scripts, and fetch nothing."""
    hashes = " ".join(f"'sha256-{_hash(source)}'" for source in sources)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def data(identifier: str, value: Mapping[str, Any]) -> str:
    """JSON for a script to read; no text in it can end the element or start another."""
    text = json.dumps(finite(value), allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f'<script type="application/json" id="{identifier}-data">{text}</script>'


def _embeddable(source: str) -> str:
    """A script's text that an HTML parser leaves alone, so that its hash stays true."""
    unified = source.replace("\r\n", "\n").replace("\r", "\n")
    return re.sub(r"<(?=/script|!--|script)", r"\\x3c", unified, flags=re.IGNORECASE)


def _hash(source: str) -> str:
    return base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
