"""What probes of some rows have in common, whatever their noise is added to."""

from __future__ import annotations

import abc
from collections.abc import Collection, Sequence

from ..records.measurements import Cost
from .estimate import Estimate
from .purse import PRODUCT
from .sweep.sums import Factors
from .weight_space.chunk_products import Operator


class AbstractRowProbes(abc.ABC):
    """Probes of rows of a Hessian, of the GGN or of their difference, the residual."""

    text: str  # what they are called
    glance: int  # probes of each operator that show a large difference between them
    pilot: int  # probes before the first look
    least: int  # probes at a time
    price = PRODUCT  # of a probe, in forward-backwards
    cost: Cost
    few = False  # too few of them for a choice by their spread

    @property
    @abc.abstractmethod
    def operators(self) -> Collection[Operator]:
        """The operators that were probed so far."""

    @abc.abstractmethod
    def count(self, operator: Operator) -> int:
        """Probes of an operator so far."""

    @property
    @abc.abstractmethod
    def passes(self) -> int:
        """Passes spent on all operators, and on what came before."""

    @property
    def common(self) -> int:
        """How many probes every operator has had."""
        return min(map(self.count, self.operators))

    @abc.abstractmethod
    def draw(self, operators: Sequence[Operator], count: int) -> None:
        """Draw `count` more probes, with the same noise for each operator."""

    def draw_glance(self, operators: Sequence[Operator], max_passes: int) -> None:
        """A few probes of those of these operators that have none."""
        if missing := [each for each in operators if each not in self.operators]:
            self.draw(missing, max(2, min(self.glance, max_passes // 2)))

    @abc.abstractmethod
    def estimate(self, operator: Operator, factors: Factors) -> Estimate:
        """Σ over rows of factor × value."""

    @abc.abstractmethod
    def spread(self, operator: Operator, factors: Factors, count: int) -> float:
        """The variance of one probe, from the first `count` of them or the first draw."""

    @abc.abstractmethod
    def neurons(self, operator: Operator, row: str) -> list[Estimate]:
        """ρ(j) of a layer."""

    @property
    def remark(self) -> str:
        """On how products were formed, where that is not exact up to rounding."""
        return ""

    @property
    def sketched(self) -> int:
        """How many dominant directions were taken out before."""
        return 0

    # -- where every direction can be taken instead of random ones ---------------------------

    @property
    def directions(self) -> int | None:
        """How many products leave nothing to chance; None if that cannot be had."""
        return None

    def complete(self, operator: Operator) -> bool:
        """Whether it was multiplied with every direction."""
        return False

    def take_all(self, operator: Operator) -> None:
        """Multiply every direction once; only where there is a number of `directions`."""
        raise NotImplementedError
