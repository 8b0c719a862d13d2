"""The order in which units are deleted, by one of several rules."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ...ground.errors import SpiritlevelError, brief
from ...ground.need import need_one_of, number

Rule = Literal["joint", "curvature", "rise", "magnitude", "fisher", "random"]


def check_rule(by: str, *, has_fisher: bool, has_pairs: bool) -> None:
    """Refuse a rule that is not known or has no numbers."""
    need_one_of("by", by, get_args(Rule))
    if by == "fisher" and not has_fisher:
        raise SpiritlevelError(
            "The 'by' argument can be 'fisher' only if the diagonal is known. Call pruning with "
            "fisher=True."
        )
    if by == "joint" and not has_pairs:
        raise SpiritlevelError(
            "The 'by' argument can be 'joint' only where the terms between units are known: not "
            "for so many units. Use by='curvature', or choose fewer 'layers'."
        )


def check_share(share: Any) -> None:
    """Refuse what is not a share of the weights."""
    if not number(above=0, below=1)(share):
        raise SpiritlevelError(
            "The 'share' argument must lie between 0 and 1: how much of the weights is to be "
            f"deleted. Got {brief(share)}. Typical: 0.3."
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Units:
    """All units in a row, of which some are taken until so many entries are gone.

    The last unit of a weight always stays.
    """

    entries: Tensor  # of each unit
    owners: Tensor  # the number of its weight
    limit: float

    def take(self, scores: Tensor) -> list[int]:
        """Units from the smallest score per entry on."""
        left = torch.bincount(self.owners)
        taken, gone = [], 0.0
        for unit in (scores / self.entries).argsort(stable=True).tolist():
            size, owner = float(self.entries[unit]), self.owners[unit]
            if left[owner] > 1 and gone + size <= self.limit:
                taken.append(unit)
                left[owner] -= 1
                gone += size
        return taken

    def take_one_by_one(self, scores: Tensor, pairs: Tensor) -> list[int]:
        """The same, where what a unit adds depends on those that are gone already.

        A unit adds its score and its terms with all that are gone, Σ_j pairs_ij.
        """
        left = torch.bincount(self.owners)
        added, gone = scores.clone(), 0.0
        taken: list[int] = []
        stays = torch.ones(len(scores), dtype=torch.bool)
        while True:
            fits = stays & (left[self.owners] > 1) & (self.entries <= self.limit - gone)
            if not bool(fits.any()):
                return taken
            best = int((added / self.entries).masked_fill(~fits, torch.inf).argmin())
            taken.append(best)
            stays[best] = False
            left[self.owners[best]] -= 1
            gone += float(self.entries[best])
            added += pairs[best]
