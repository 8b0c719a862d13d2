"""Paper 000, Fig. 4: SGD against AdamW, and what a larger learning rate does to each."""

from __future__ import annotations

from collections.abc import Sequence

from ...study.statistics import spearman
from ..judging.experiment import Row
from ..judging.factors import factor
from ..judging.findings import Finding, above, below, every
from ..judging.numbers import mean
from ..judging.population import GAP

HEAD = "head.kappa"
SGD, ADAMW = "SGD", "AdamW"
ALIKE = ("batch_size", "weight_decay", "seed")  # what networks that are compared share
Way = tuple[str, float]  # optimizer and learning rate


def optimizers_compared(ways: dict[Way, list[Row]]) -> list[Finding]:
    """Fig. 4: SGD against AdamW at the same rate, with all else the same."""
    shared = [rate for optimizer, rate in ways if optimizer == SGD and (ADAMW, rate) in ways]
    pairs = {rate: _pairs(ways[ADAMW, rate], ways[SGD, rate]) for rate in shared}
    flatter = {
        rate: factor((adamw.get(HEAD), sgd.get(HEAD)) for adamw, sgd in each)
        for rate, each in pairs.items()
    }
    smaller = {rate: mean(s[GAP] - a[GAP] for a, s in each) for rate, each in pairs.items()}
    return [
        every(
            "SGD ends flatter than AdamW at every rate that both have (flatness over AdamW's)",
            [below(f"rate {rate:g}", change, 1.0) for rate, change in flatter.items()],
        ),
        every(
            "SGD ends with a smaller gap than AdamW at every rate that both have (gap, less "
            "AdamW's)",
            [below(f"rate {rate:g}", change) for rate, change in smaller.items()],
        ),
    ]


def _pairs(first: Sequence[Row], second: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Runs that differ in nothing else."""
    partners = {tuple(map(row.get, ALIKE)): row for row in first}
    keys = [(tuple(map(row.get, ALIKE)), row) for row in second]
    return [(partners[key], row) for key, row in keys if key in partners]


def rates_compared(ways: dict[Way, list[Row]]) -> list[Finding]:
    """Fig. 4: a larger rate makes one optimizer flatter and the other sharper."""
    trends = {}
    for name in (SGD, ADAMW):
        points = [
            (w[1], row.get(HEAD)) for w, group in ways.items() if w[0] == name for row in group
        ]
        trends[name] = spearman([rate for rate, _ in points], [kappa for _, kappa in points])
    return [
        every(
            "flatness falls with the rate of SGD and rises with that of AdamW (rank correlations)",
            [below(SGD, trends[SGD]), above(ADAMW, trends[ADAMW])],
        )
    ]
