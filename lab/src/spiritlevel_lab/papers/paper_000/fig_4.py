"""Paper 000, Fig. 4: flatness and gap by optimizer and learning rate."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from spiritlevel.records.content import Cell, Figure, Panels, Series, Table

from ...claims.contrasts import exponential
from ...claims.experiment import Experiment, Outcome, Row
from ...claims.findings import Finding, above, below, every, verdict
from ...claims.numbers import IntervalEstimate, plain, widest_mean
from ...claims.population import GAP, finite_rows
from ...claims.rows import OUTCOMES, column
from ...statistics import spearman
from .table_3 import ADAMW, FLATNESS, HEAD, SGD, ByRate, by_optimizer_and_rate

ALIKE = ("batch_size", "weight_decay", "seed")  # what networks that are compared share
SHOWN = {HEAD: FLATNESS, **OUTCOMES}


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """SGD against AdamW at the same rate, and what a larger rate does to each."""
    groups = by_optimizer_and_rate(finite_rows(rows, HEAD))
    findings = [*_optimizers_compared(groups), *_rates_compared(groups)]
    table: list[list[Cell]] = [
        [optimizer, f"{rate:g}", len(group), *(_quartiles_text(group, name) for name in SHOWN)]
        for (optimizer, rate), group in groups.items()
    ]
    return Outcome(
        table=Table(("optimizer", "learning rate", "n", *SHOWN.values()), table),
        figure=Panels([_boxes(groups, HEAD), _boxes(groups, GAP)], columns=2),
        findings=findings,
        agrees=verdict(findings),
        conclusion=_conclusion(groups),
    )


def _boxes(groups: ByRate, name: str) -> Figure:
    """Medians and quartiles along the rates, as the boxes of the paper's figure have them."""
    series = []
    for chosen in (SGD, ADAMW):
        boxes = [
            (rate, *statistics.quantiles(column(group, name), n=4, method="inclusive"))
            for (optimizer, rate), group in groups.items()
            if optimizer == chosen and len(group) > 1
        ]
        if boxes:
            rates, low, middle, high = map(list, zip(*boxes, strict=True))
            series.append(Series(chosen, rates, middle, low, high))
    positive = all(value > 0 for each in series for value in each.low or ())
    return Figure(
        *("learning rate", SHOWN[name], series),
        log_x=True,
        log_y=positive,
        title=f"{SHOWN[name]}: median, quartiles",
    )


def _quartiles_text(group: Sequence[Row], name: str) -> str | None:
    values = [value for value in column(group, name) if value is not None]
    if len(values) < 2:
        return plain(values[0]) if values else None
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{plain(middle)} [{plain(low)}, {plain(high)}]"


def _conclusion(groups: ByRate) -> str:
    parts = []
    for chosen in (SGD, ADAMW):
        group = [
            row for (optimizer, _), each in groups.items() if optimizer == chosen for row in each
        ]
        if group:
            flatness, gap = (statistics.median(column(group, name)) for name in (HEAD, GAP))
            parts.append(
                f"{chosen} has a median flatness of {plain(flatness, 3)} and gap of "
                f"{plain(gap, 3)} over {len(group)} networks"
            )
    return f"{'; '.join(parts)}." if parts else "No network of either optimizer has a flatness."


def _optimizers_compared(groups: ByRate) -> list[Finding]:
    """Fig. 4: SGD against AdamW at the same rate, with all else the same."""
    shared = [rate for optimizer, rate in groups if optimizer == SGD and (ADAMW, rate) in groups]
    pairs = {rate: _pairs(groups[ADAMW, rate], groups[SGD, rate]) for rate in shared}
    flatter = {
        rate: exponential(_widest(each, lambda a, s: math.log(s[HEAD] / a[HEAD])))
        for rate, each in pairs.items()
    }
    smaller = {rate: _widest(each, lambda a, s: s[GAP] - a[GAP]) for rate, each in pairs.items()}
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


def _widest(
    pairs: Sequence[tuple[Row, Row]], change: Callable[[Row, Row], float]
) -> IntervalEstimate:
    """Over pairs, over their seeds or over what else they share, whichever is widest."""
    changes = [change(*pair) for pair in pairs]
    shared = (("seed",), ("batch_size", "weight_decay"))
    return widest_mean(
        changes, *([tuple(map(row.get, names)) for row, _ in pairs] for names in shared)
    )


def _pairs(first: Sequence[Row], second: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Pairs of runs, one of each group, that differ in nothing else."""
    partners = {tuple(map(row.get, ALIKE)): row for row in first}
    keys = [(tuple(map(row.get, ALIKE)), row) for row in second]
    return [(partners[key], row) for key, row in keys if key in partners]


def _rates_compared(groups: ByRate) -> list[Finding]:
    """Fig. 4: a larger rate makes one optimizer flatter and the other sharper."""
    trends = {}
    for name in (SGD, ADAMW):
        points = [
            (rate, row.get(HEAD))
            for (optimizer, rate), group in groups.items()
            if optimizer == name
            for row in group
        ]
        trends[name] = spearman([rate for rate, _ in points], [kappa for _, kappa in points])
    return [
        every(
            "flatness falls with the rate of SGD and rises with that of AdamW (rank correlations)",
            [below(SGD, trends[SGD]), above(ADAMW, trends[ADAMW])],
        )
    ]
