"""Docstrings as Markdown: the examples in them become blocks of code."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^( *)>>> .*(?:\n(?!\s*$).*)*", flags=re.MULTILINE)


class Examples(griffe.Extension):
    """Fence every example, from its first `>>>` to the next empty line."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the text of a docstring, before it is parsed."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(_fenced, obj.docstring.value)


def _fenced(found: re.Match[str]) -> str:
    return f"{found[1]}```pycon\n{found[0]}\n{found[1]}```"
