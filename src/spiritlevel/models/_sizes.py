"""The one check every constructor makes: sizes are positive whole numbers."""

from __future__ import annotations

from .._core import SpiritlevelError


def check_sizes(model: str, /, **sizes: int) -> None:
    """Refuse the first size that is not an integer of at least 1, by its argument's name."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise SpiritlevelError(
                f"The {name!r} argument of {model} must be a whole number of at least 1. "
                f"Got {size!r}. Leave it out for the default."
            )
