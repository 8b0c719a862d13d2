"""An estimate of a sum of rows, with what it is of and how it came about."""

from __future__ import annotations

import dataclasses

from ..records.measurements import Cost, Status
from .estimate import Estimate


@dataclasses.dataclass(frozen=True)
class RowEstimate:
    """An estimate, which matrix it is of, and how it was computed."""

    estimate: Estimate
    quantity: str  # "Hessian" or "GGN"
    status: Status
    text: str
    cost: Cost

    @property
    def exact(self) -> bool:
        """Whether the value is exact, and of the matrix that was asked for."""
        return self.estimate.exact and self.status is Status.OK
