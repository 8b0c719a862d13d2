"""The `spiritlevel` command: the only code that prints."""

from __future__ import annotations

import sys

from ..ground.errors import MissingExtra, require
from .termination import importing


def main() -> None:
    """Run the command line; without its packages, say which extra brings them."""
    try:
        for package in ("typer", "rich"):
            require(package, what="The command line", extra="cli")
    except MissingExtra as error:
        sys.exit(_refuse(str(error)))
    with importing():
        from .app import app
        from .console import spell_what_cannot_be_shown

    spell_what_cannot_be_shown(sys.stdout, sys.stderr)
    app()


def _refuse(text: str) -> int:
    print(f"error: {text}", file=sys.stderr)
    return 1
