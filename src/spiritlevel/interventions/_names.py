"""Layers by name."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from .._core import SpiritlevelError


def no_such_layer(
    name: str, there: Sequence[str], *, function: str, argument: str
) -> SpiritlevelError:
    """The refusal of a layer name, with the nearest that exist."""
    paths = [path for path in there if path]
    close = difflib.get_close_matches(name, paths, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return SpiritlevelError(
        f"The {argument!r} argument of {function} must name layers of the model. Got {name!r}."
        f"{hint} There are: {', '.join(paths[:12])}{', ...' if len(paths) > 12 else ''}."
    )
