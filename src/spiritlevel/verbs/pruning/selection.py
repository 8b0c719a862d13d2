"""The order in which units are deleted, by one of several rules."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from ...ground.errors import SpiritlevelError, brief, suggestion

Rule = Literal["joint", "curvature", "rise", "magnitude", "fisher", "random"]


def check_rule(by: str, known: set[str]) -> None:
    """Refuse a rule that is not known or has no numbers."""
    if by not in get_args(Rule):
        raise SpiritlevelError(
            f"The 'by' argument must be one of {', '.join(get_args(Rule))}. Got {brief(by)}."
            f"{suggestion(by, get_args(Rule))}"
        )
    if by == "fisher" and "fisher" not in known:
        raise SpiritlevelError(
            "The 'by' argument can be 'fisher' only if the diagonal is known. Call pruning with "
            "fisher=True."
        )
    if by == "joint" and "joint" not in known:
        raise SpiritlevelError(
            "The 'by' argument can be 'joint' only where the terms between units are known: not "
            "for so many units. Use by='curvature', or choose fewer 'layers'."
        )


def check_share(share: object) -> None:
    """Refuse what is not a share of the weights."""
    is_number = isinstance(share, int | float) and not isinstance(share, bool)
    if not is_number or not 0.0 < share < 1.0:  # type: ignore[operator]
        raise SpiritlevelError(
            "The 'share' argument must lie between 0 and 1: how much of the weights is to be "
            f"deleted. Got {brief(share)}. Typical: 0.3."
        )


def take(scores: Tensor, entries: Tensor, owners: Tensor, limit: float) -> list[int]:
    """Units from the smallest score per entry on, until `limit` entries are gone.

    The last unit of a weight always stays. All arguments but `limit` have one value per unit.
    """
    return _collect((scores / entries).argsort(stable=True).tolist(), entries, owners, limit)


def take_one_by_one(
    scores: Tensor, pairs: Tensor, entries: Tensor, owners: Tensor, limit: float
) -> list[int]:
    """The same, where what a unit adds depends on those that are gone already.

    A unit adds its score and its terms with all that are gone, Σ_j pairs_ij.
    """
    left = torch.bincount(owners)
    added, gone = scores.clone(), 0.0
    taken: list[int] = []
    open_ = torch.ones(len(scores), dtype=torch.bool)
    while True:
        fits = open_ & (left[owners] > 1) & (entries <= limit - gone)
        if not bool(fits.any()):
            return taken
        best = int((added / entries).masked_fill(~fits, torch.inf).argmin())
        taken.append(best)
        open_[best] = False
        left[owners[best]] -= 1
        gone += float(entries[best])
        added += pairs[best]


def _collect(order: list[int], entries: Tensor, owners: Tensor, limit: float) -> list[int]:
    left = torch.bincount(owners)
    taken, gone = [], 0.0
    for unit in order:
        size = float(entries[unit])
        if left[owners[unit]] > 1 and gone + size <= limit:
            taken.append(unit)
            left[owners[unit]] -= 1
            gone += size
    return taken
