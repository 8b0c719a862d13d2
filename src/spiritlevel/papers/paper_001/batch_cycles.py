"""Training several times on each batch (paper 001, Table 2 and Fig. 4): what both look at."""

from __future__ import annotations

from collections.abc import Sequence

from ...study.statistics import Correlation, spearman
from ..experiment import Row
from ..judging.contrasts import falls, rises
from ..judging.rows import column

CYCLES = "interventions.batch_cycles"
TRACE, GINI = "curvature.trace", "softmax.gini"


def follow(rows: Sequence[Row], name: str, cycles: str = CYCLES) -> Correlation:
    """How a number follows the steps on each batch, over runs."""
    return spearman(column(rows, cycles), column(rows, name))


def words(trend: Correlation) -> str:
    """In a sentence."""
    verb = "rises" if rises(trend) else "falls" if falls(trend) else "does not clearly move"
    return f"{verb} (Spearman {trend}, n = {trend.n})"
