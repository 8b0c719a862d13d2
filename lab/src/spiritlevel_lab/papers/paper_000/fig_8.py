"""Paper 000, Fig. 8: flatness and gap of VGG-16 and DenseNet-121, and how flatness is spread."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...claims.factors import factor
from ...claims.findings import (
    NOT_YET,
    Finding,
    above,
    estimate,
    every,
    fact,
    verdict,
)
from ...claims.numbers import IntervalEstimate, plain
from ...claims.population import CONFOUNDERS, GAP
from ...claims.rows import column
from ...statistics import regression
from ..experiment import (
    Cell,
    Experiment,
    Outcome,
    Panels,
    Row,
    Table,
)
from . import table_5
from .flatness_panels import drawn, flatness_density, marks
from .optimizers import ADAMW, HEAD, SGD

NETWORKS = table_5.OURS
ORDERS = 100.0  # "several orders of magnitude": at least two
VGG = "vgg16"


def analyse(rows: Sequence[Row]) -> Outcome:
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


EXPERIMENT = Experiment(
    name="000-fig-8",
    title="flatness and gap of VGG-16 and DenseNet, plainly, by logarithms and as a density",
    source="Fig. 8",
    claim=(
        "In VGG-16 and DenseNet-121 too, the gap rises with the logarithm of relative flatness, "
        "which spans several orders of magnitude; AdamW's VGG-16 lie in sharper regions than SGD's."
    ),
    analyse=analyse,
    trained=table_5.EXPERIMENT.trained,
    columns=(
        *("outcome", "variant", "optimizer", "lr", "batch_size", "seed", GAP),
        *(*CONFOUNDERS, HEAD),
    ),
    rule=(
        "in both networks the 95 % interval of Pearson's correlation of the gap with the logarithm "
        f"of flatness lies above 0 and flatness spans a factor of {ORDERS:g}, and in VGG-16 "
        "AdamW's flatness over SGD's (same rate, batch size and seed) lies above 1 with its whole "
        "interval. Partly, if one of the three is so. Written down after the first runs, which "
        "were not trained."
    ),
    set_up=(
        "The networks of 000-table-5. The paper's figure has a row for each network: the gap over "
        "flatness, the same on a logarithmic axis, and a kernel density of flatness; here the "
        "density is one of its logarithm (Scott's bandwidth). The row for ResNet-18 stands in "
        "000-fig-3. The paper prints no number for this figure beside those of its Table 5."
    ),
    scaled_down=table_5.EXPERIMENT.scaled_down,
    measures=(HEAD,),
    rows_of=table_5.EXPERIMENT.name,
)
