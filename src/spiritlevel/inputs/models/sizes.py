"""Checks that all networks make: sizes are positive whole numbers."""

from __future__ import annotations

from collections.abc import Sequence

from ...ground.errors import SpiritlevelError, brief


def check_sizes(model: str, /, **sizes: int) -> None:
    """Refuse a size that is not a whole number of at least 1; the error names its argument."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise SpiritlevelError(
                f"The {name!r} argument of {model} must be a whole number of at least 1. "
                f"Got {brief(size)}. Leave it out for the default."
            )


def several_sizes(model: str, name: str, sizes: int | Sequence[int]) -> tuple[int, ...]:
    """One size or several, checked, as a tuple.

    >>> several_sizes("mlp", "hidden", 64)
    (64,)
    """
    listed = tuple(sizes) if isinstance(sizes, list | tuple) else (sizes,)
    for size in listed:
        check_sizes(model, **{name: size})
    return listed


def check_divides(model: str, part: str, whole: str, **sizes: int) -> None:
    """Refuse two sizes of which the first does not divide the second."""
    if sizes[whole] % sizes[part]:
        raise SpiritlevelError(
            f"The {part!r} argument of {model} must divide {whole!r}. Got {part}={sizes[part]} and "
            f"{whole}={sizes[whole]}. Change one of the two."
        )
