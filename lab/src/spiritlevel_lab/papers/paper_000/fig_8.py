"""Paper 000, Fig. 8: flatness and gap of VGG-16 and DenseNet-121, and how flatness is spread."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from spiritlevel.records.content import Panels

from ...claims.contrasts import factor
from ...claims.experiment import Experiment, Outcome, Row
from ...claims.findings import shown, verdict
from ...claims.numbers import IntervalEstimate, plain
from ...claims.population import GAP
from ...claims.rows import column
from ..recipes.recipe import Recipe
from .flatness_panels import drawn, flatness_density, marks
from .table_3 import ADAMW, HEAD, SGD

VGG = "VGG-16"


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """By the recipe, with the range of flatness, and AdamW against SGD, in each network."""
    recipe = Recipe(experiment, drawn(rows, GAP))
    groups = recipe.runs.groups
    spans = {name: _span(group) for name, group in groups.items()}
    recipe.each |= {
        "span": spans,
        "sharper": {name: _sharper(group) for name, group in groups.items()},
    }
    found = recipe.outcome(sharper_vgg=recipe.each["sharper"][VGG])
    rises, sharper = found.findings
    wide = shown(
        "flatness spans several orders of magnitude (the paper does not say how many)",
        "; ".join(f"{name}: a factor of {plain(span, 3)}" for name, span in spans.items()),
    )
    findings = [rises, wide, sharper]
    return dataclasses.replace(
        found, findings=findings, agrees=verdict(findings), figure=_figure(groups)
    )


def _span(group: Sequence[Row]) -> float:
    values = column(group, HEAD)
    return max(values) / min(values) if values else math.nan


def _sharper(group: Sequence[Row]) -> IntervalEstimate:
    """Flatness of AdamW over that of SGD with the same rate, batch size and seed."""
    keys = ("lr", "batch_size", "seed")
    sgd = {tuple(r[k] for k in keys): r[HEAD] for r in group if r["optimizer"] == "sgd"}
    pairs = [(tuple(r[k] for k in keys), r[HEAD]) for r in group if r["optimizer"] == "adamw"]
    return factor((sgd[key], value) for key, value in pairs if key in sgd)


def _by_optimizer(group: Sequence[Row]) -> dict[str, list[Row]]:
    words = {"sgd": SGD, "adamw": ADAMW}
    return {word: [row for row in group if row["optimizer"] == key] for key, word in words.items()}


def _figure(groups: Mapping[str, Sequence[Row]]) -> Panels:
    label = "generalization gap"
    return Panels(
        [
            panel
            for name, group in groups.items()
            for panel in (
                marks(_by_optimizer(group), GAP, label, name),
                marks(_by_optimizer(group), GAP, label, f"{name}, log. axis", log_x=True),
                flatness_density(group, GAP, f"{name}, density"),
            )
        ],
        columns=3,
    )
