"""What a measure asks of a network, its loss or its options before it can be computed.

A card names its requirements; a check raises with what was needed, what came and what to do. A
measure that was asked for by name is refused with that text, one that only matched a pattern is
left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .._core import SpiritlevelError
from ..estimators.work import Work
from ..losses import CrossEntropy
from ._layers import measured_weights

Check = Callable[[Work, str], object]


def softmax(work: Work, name: str) -> None:
    """A loss with class probabilities."""
    loss = work.surface.loss
    if not isinstance(loss, CrossEntropy):
        raise SpiritlevelError(
            f"The measure {name!r} needs the loss 'cross_entropy'. Got {loss.name!r}. "
            "Leave it out of 'measures'."
        )


def head(work: Work, name: str) -> None:
    """A last linear map."""
    _ = work.head


REQUIREMENTS: dict[str, Check] = {
    "softmax": softmax,
    "head": head,
    "matrix": measured_weights,
}


def refuse(work: Work, name: str, requires: Iterable[str]) -> None:
    """Raise for the first requirement that is not met."""
    for requirement in requires:
        REQUIREMENTS[requirement](work, name)
