"""Paper 003, Figs. 1 and 2: minima of LeNet-5, as trained and randomly rescaled."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from spiritlevel.records.content import Cell, Figure, Panels, Series, Table

from ...claims.experiment import Experiment, Outcome, Row
from ...claims.findings import (
    Agreement,
    Finding,
    above,
    estimate,
    missed,
    shown,
    unmoved,
    verdict,
)
from ...claims.population import CONFOUNDERS, GAP, scatter, why
from ...claims.rows import column
from ...claims.settings import difference_of, judged_of, levels_tables, partial_of, settings_of
from ...statistics import Judged
from .tasks_networks import CHANGE, LAYERS, NEURONS

LAYER = "[head]"  # l = 5: the weights that read the last hidden layer
LARGEST, TRACE = f"scaled.lambda_max{LAYER}", f"scaled.trace{LAYER}"
COUNTERPARTS = {LARGEST: f"task.lambda_max{LAYER}", TRACE: f"task.trace{LAYER}"}
OTHERS = (f"relative.kappa{LAYER}", f"neuron.rho_sum{LAYER}")
WORDS = {
    LARGEST: "κ^5 = ‖w‖² λ_max",
    TRACE: "κ_τ^5 = ‖w‖² Tr H",
    COUNTERPARTS[LARGEST]: "λ_max alone",
    COUNTERPARTS[TRACE]: "Tr H alone",
    OTHERS[0]: "relative.kappa",
    OTHERS[1]: "neuron.rho_sum",
}
VERSIONS = {"": "as trained", f"/{LAYERS}": "layers rescaled", f"/{NEURONS}": "neurons rescaled"}
Ranks = dict[tuple[str, str], Judged]  # by measure and version


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """Rank correlations with the gap before and after the same networks are rescaled."""
    settings = experiment.settings
    ranks = {
        (name, version): judged_of(rows, name + version, GAP, settings)
        for name in WORDS
        for version in VERSIONS
    }
    first = ranks[TRACE, ""]
    parts = [_parts(experiment, rows, ranks, name) for name in COUNTERPARTS]
    change = max((row[f"{CHANGE}/{LAYERS}"] for row in rows), default=float("nan"))
    return Outcome(
        table=_table(rows, ranks, settings),
        figure=_figure(rows, settings),
        why=why(rows, TRACE, "κ_τ^5", settings),
        reproduced_values=dict.fromkeys(experiment.paper_values, estimate(first)),
        findings=[finding for each in parts for finding in each],
        agrees=_agreement(parts),
        more=levels_tables(rows, tuple(WORDS), settings),
        conclusion=(
            f"Over {len(rows)} networks the rank correlation with the gap is {first} for κ_τ^5 "
            f"and {ranks[LARGEST, '']} for κ^5; random rescaling of layers, which changes outputs "
            f"by at most {change:.1g} of the largest, takes it {_moved(ranks, TRACE)} and "
            f"{_moved(ranks, LARGEST)}, that of the trace alone "
            f"{_moved(ranks, COUNTERPARTS[TRACE])} and that of the largest eigenvalue alone "
            f"{_moved(ranks, COUNTERPARTS[LARGEST])}."
        ),
    )


def _moved(ranks: Ranks, name: str) -> str:
    before, after = ranks[name, ""], ranks[name, f"/{LAYERS}"]
    return f"from {before.value:+.2f} to {after.value:+.2f}"


def _parts(experiment: Experiment, rows: Sequence[Row], ranks: Ranks, name: str) -> list[Finding]:
    """The parts on one measure; without a positive correlation nothing can survive or be lost."""
    title, other, settings = WORDS[name], COUNTERPARTS[name], experiment.settings
    [paper] = experiment.paper_values.values() if name == TRACE else [None]
    correlates = above(
        f"{title} correlates with the gap",
        ranks[name, ""],
        paper=paper,
        comparable=experiment.comparable,
    )
    survives = f"{title} keeps it when layers are rescaled (correlation after, less before)"
    weaker = f"{WORDS[other]} does not (correlation of {title}, less its own, after)"
    if correlates.result != "held":
        seen = (_moved(ranks, name), _moved(ranks, other))
        return [
            correlates,
            *(shown(p, f"it goes {s}") for p, s in zip((survives, weaker), seen, strict=True)),
        ]
    after, lost = (f"{each}/{LAYERS}" for each in (name, other))
    return [
        correlates,
        unmoved(survives, difference_of(rows, after, name, GAP, settings)),
        above(weaker, difference_of(rows, after, lost, GAP, settings)),
    ]


def _agreement(parts: list[list[Finding]]) -> Agreement:
    every = [finding for each in parts for finding in each]
    there = any(correlates.result == "held" for correlates, *_ in parts)
    return verdict(every) if there else missed(every)


def _table(rows: Sequence[Row], ranks: Ranks, settings: Sequence[str]) -> Table:
    table: list[list[Cell]] = []
    for name, title in WORDS.items():
        fixed = partial_of(rows, name, GAP, list(CONFOUNDERS), settings)
        shown = [ranks[name, version] for version in VERSIONS]
        table.append([title, shown[0].n, *(estimate(c) for c in (*shown, fixed))])
    over = ", widest interval" if settings_of(rows, settings) is not None else ""
    shown_as = (*VERSIONS.values(), "confounders held fixed")
    titles = [f"Spearman, {version}{over}" for version in shown_as]
    return Table(("measure of the last layer", "n", *titles), table)


def _figure(rows: Sequence[Row], settings: Sequence[str]) -> Panels:
    """Fig. 1 of the paper, with a colour for each setting, above its Fig. 2."""
    as_trained = dataclasses.replace(scatter(rows, TRACE, settings), title="As trained")
    return Panels([as_trained, _rescaled(rows)], columns=1)


def _rescaled(rows: Sequence[Row]) -> Figure:
    """The invariant measure does not change, the other one is scattered."""
    lines = [
        Series(
            f"{WORDS[name]}, {VERSIONS[v]}",
            column(rows, name + v),
            column(rows, GAP),
            ring=not v,  # where rescaling changes nothing, both points coincide
        )
        for name in (TRACE, COUNTERPARTS[TRACE])
        for v in ("", f"/{LAYERS}")
    ]
    return Figure(
        *("measure", "generalization gap", lines),
        log_x=True,
        points=True,
        title="As trained, and with layers rescaled",
    )
