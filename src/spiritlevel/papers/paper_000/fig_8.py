"""Paper 000, Fig. 8: flatness and gap of VGG-16 and DenseNet-121, and how flatness is spread."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...pages.content import Cell, Panels, Table
from ...study.statistics import regression
from ..judging.contrasts import factor
from ..judging.experiment import Experiment, Outcome, Row
from ..judging.findings import NOT_YET, Finding, above, estimate, every, fact, verdict
from ..judging.numbers import IntervalEstimate, plain
from ..judging.population import GAP
from ..judging.rows import column
from .flatness_panels import drawn, flatness_density, marks
from .optimizers_and_rates import ADAMW, HEAD, SGD

NETWORKS = {"vgg16": "VGG-16", "densenet121": "DenseNet"}  # the scale says how deep
ORDERS = 100.0  # "several orders of magnitude": at least two
VGG = "vgg16"


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """For each network: the correlation with log flatness, its range, and AdamW against SGD."""
    groups = {name: drawn([r for r in rows if r["variant"] == name], GAP) for name in NETWORKS}
    lines = {
        name: {
            log: regression(column(group, HEAD), column(group, GAP), log=log).pearson
            for log in (False, True)
        }
        for name, group in groups.items()
    }
    spans = {name: _span(group) for name, group in groups.items()}
    sharper = _sharper(groups[VGG])
    findings = [
        every(
            "the gap rises with the logarithm of flatness in each network (Pearson correlation)",
            [above(NETWORKS[name], both[True]) for name, both in lines.items()],
        ),
        every(
            f"flatness spans at least a factor of {ORDERS:g} in each network",
            [_wide(NETWORKS[name], span) for name, span in spans.items()],
        ),
        above("in VGG-16 AdamW ends sharper than SGD (flatness over SGD's)", sharper, 1.0),
    ]
    table: list[list[Cell]] = [
        [
            *(NETWORKS[name], len(group), spans[name]),
            *(estimate(lines[name][log]) for log in (False, True)),
            _sharper(group),
        ]
        for name, group in groups.items()
    ]
    return Outcome(
        table=Table(
            (
                *("network", "n", "largest over smallest flatness", "Pearson"),
                *("Pearson, logarithm of flatness", "flatness of AdamW over SGD's"),
            ),
            table,
        ),
        figure=_figure(groups) if groups else None,
        findings=findings,
        agrees=verdict(findings),
        conclusion=(
            "The logarithm of flatness and the gap have a Pearson correlation of "
            + " and ".join(
                f"{both[True]} in {NETWORKS[name]} (n = {both[True].n}; {both[False]} without the "
                "logarithm)"
                for name, both in lines.items()
            )
            + f"; in VGG-16 AdamW's flatness is {sharper} times that of SGD."
        ),
    )


def _span(group: Sequence[Row]) -> float:
    values = column(group, HEAD)
    return max(values) / min(values) if values else math.nan


def _wide(network: str, span: float) -> Finding:
    if math.isnan(span):
        return fact(network, None, NOT_YET)
    return fact(network, span >= ORDERS, f"a factor of {plain(span, 3)}")


def _sharper(group: Sequence[Row]) -> IntervalEstimate:
    """Flatness of AdamW over that of SGD with the same rate, batch size and seed."""
    keys = ("lr", "batch_size", "seed")
    sgd = {tuple(r[k] for k in keys): r[HEAD] for r in group if r["optimizer"] == "sgd"}
    pairs = [(tuple(r[k] for k in keys), r[HEAD]) for r in group if r["optimizer"] == "adamw"]
    return factor((sgd[key], value) for key, value in pairs if key in sgd)


def _by_optimizer(group: Sequence[Row]) -> dict[str, list[Row]]:
    words = {"sgd": SGD, "adamw": ADAMW}
    return {word: [row for row in group if row["optimizer"] == key] for key, word in words.items()}


def _figure(groups: dict[str, list[Row]]) -> Panels:
    label = "generalization gap"
    return Panels(
        [
            panel
            for name, group in groups.items()
            for panel in (
                marks(_by_optimizer(group), GAP, label, NETWORKS[name]),
                marks(_by_optimizer(group), GAP, label, f"{NETWORKS[name]}, log. axis", log_x=True),
                flatness_density(group, GAP, f"{NETWORKS[name]}, density"),
            )
        ],
        columns=3,
    )
