"""The error for a layer that is not there."""

from __future__ import annotations

from collections.abc import Sequence

from spiritlevel.ground.errors import SpiritlevelError, brief, suggestion


def no_such_layer(
    name: str, there: Sequence[str], *, function: str, argument: str
) -> SpiritlevelError:
    """The refusal of a layer name, with the nearest that exist."""
    paths = [path for path in there if path]
    hint = suggestion(name, paths, most=1)
    return SpiritlevelError(
        f"The {argument!r} argument of {function} must name layers of the model. Got {brief(name)}."
        f"{hint} There are: {', '.join(paths[:12])}{', ...' if len(paths) > 12 else ''}."
    )
