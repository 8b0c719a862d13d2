"""What Table 2 and Fig. 4 of paper 001 share: training several times on each batch."""

from __future__ import annotations

from collections.abc import Sequence

from ...claims.contrasts import falls, rises
from ...claims.rows import column
from ...statistics import Correlation, spearman
from ..experiment import Row

CYCLES = "interventions.batch_cycles"
TRACE, GINI = "curvature.trace", "softmax.gini"


def follow(rows: Sequence[Row], name: str, cycles: str = CYCLES) -> Correlation:
    """How a number follows the steps on each batch, over runs."""
    return spearman(column(rows, cycles), column(rows, name))


def trend_in_words(trend: Correlation) -> str:
    """Whether the number rises, falls or does not clearly move, with the correlation."""
    verb = "rises" if rises(trend) else "falls" if falls(trend) else "does not clearly move"
    return f"{verb} (Spearman {trend}, n = {trend.n})"
