"""Paper 003, Figs. 3 to 6: a perceptron on MNIST, flatness by layer, neuron and network."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from spiritlevel.records.content import Figure, Panels, Series

from ...claims.experiment import Experiment, Outcome, Row
from ...claims.findings import Finding, above, estimate, every, verdict
from ...claims.population import FEW, GAP, correlations, scatter, why
from ...claims.rows import column, grouped
from ...claims.settings import difference_of, levels_tables
from ...statistics import Judged, spearman

LAYERS = ("fc1", "fc2", "fc3", "fc4")  # the hidden ones
KAPPA, SUM, MAX = "scaled.trace", "neuron.rho_sum", "neuron.rho_max"
NETWORK = {  # of the whole network, and the measure of a layer that it is made of
    "scaled.trace_max": KAPPA,
    KAPPA: KAPPA,
    MAX: MAX,
    SUM: SUM,
}
WORDS = {KAPPA: "κ_τ^l (scaled.trace)", SUM: "ρ_σ^l (neuron.rho_sum)", MAX: "ρ^l (neuron.rho_max)"}


def of_layer(measure: str, layer: str) -> str:
    """The name of the column that holds a measure of one layer."""
    return f"{measure}[{layer}]"


BY_LAYER = {measure: [of_layer(measure, layer) for layer in LAYERS] for measure in WORDS}


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """Does every layer correlate with the gap, and the whole network more than each layer?"""
    settings = experiment.settings
    of_layers = [name for names in BY_LAYER.values() for name in names]
    table, ranks = correlations(rows, [*of_layers, *NETWORK], settings)
    least, comparable = next(iter(experiment.paper_values.values())), experiment.comparable
    findings = [
        _every_layer(
            {name: ranks[name] for name in BY_LAYER[KAPPA]}, least if comparable else -1.0
        ),
        every(
            "neuron-wise flatness of every hidden layer correlates too (Figs. 4 and 5)",
            [above(name, ranks[name]) for name in (*BY_LAYER[SUM], *BY_LAYER[MAX])],
        ),
        every(
            "each measure of the network correlates more than its layers (Fig. 6; its rank "
            "correlation, less theirs)",
            [
                _ahead(rows, name, layer, settings)
                for name, measure in NETWORK.items()
                for layer in BY_LAYER[measure]
            ],
        ),
    ]
    weakest = min((ranks[name] for name in BY_LAYER[KAPPA]), key=lambda found: found.value)
    return Outcome(
        table=table,
        more=levels_tables(rows, list(NETWORK), settings),
        figure=_figure(rows, ranks, settings),
        why=_why(rows, settings) if len(rows) >= FEW else "",
        reproduced_values=dict.fromkeys(experiment.paper_values, estimate(weakest)),
        findings=findings,
        agrees=verdict(findings) if len(rows) >= FEW else "undecided",
        conclusion=_conclusion(ranks, len(rows)),
    )


def _every_layer(ranks: Mapping[str, Judged], least: float) -> Finding:
    """Fig. 3: an interval below what the paper has for every layer refutes it, if one is needed."""
    found = every(
        "κ_τ of every hidden layer correlates with the gap (Fig. 3)",
        [above(name, each) for name, each in ranks.items()],
    )
    less = [name for name, each in ranks.items() if each.high < least]
    if not less:
        return found
    result = found.result if found.result == "held" else "not held"
    seen = f"{found.seen}; the paper's {least:g} or more lies outside for {', '.join(less)}"
    return dataclasses.replace(found, result=result, seen=seen)


def _ahead(rows: Sequence[Row], name: str, layer: str, settings: Sequence[str]) -> Finding:
    """A largest value that is this layer's in all networks cannot differ from it."""
    if column(rows, name) == column(rows, layer):
        return Finding(f"{name} and {layer}", "undecided", "the same in all networks")
    return above(f"{name} and {layer}", difference_of(rows, name, layer, GAP, settings))


def _conclusion(ranks: Mapping[str, Judged], n: int) -> str:
    by_layer = "; ".join(
        f"{title} {min(values):+.2f} to {max(values):+.2f}"
        for measure, title in WORDS.items()
        for values in [[ranks[name].value for name in BY_LAYER[measure]]]
    )
    whole = ", ".join(f"{name} {ranks[name]}" for name in NETWORK)
    return (
        f"Over {n} networks the rank correlations with the gap over the hidden layers are: "
        f"{by_layer}; of the whole network: {whole}."
    )


def _why(trained: Sequence[Row], settings: Sequence[str]) -> str:
    """What correlates with both κ_τ and the gap, and what is left at one batch size."""
    confounded = why(trained, KAPPA, "κ_τ of the network", settings)
    by_batch = grouped(trained, "variant")
    within = {
        variant: spearman(column(rows, KAPPA), column(rows, GAP))
        for variant, rows in by_batch.items()
    }
    if len(by_batch) == 1:
        return confounded
    each = ", ".join(
        f"{correlation} for {name} (n = {correlation.n})" for name, correlation in within.items()
    )
    return (
        f"{confounded} Among networks of one batch size and learning rate, the rank correlation "
        f"of κ_τ and the gap is {each}. This was examined after the runs and is not judged."
    )


def _figure(rows: Sequence[Row], ranks: Mapping[str, Judged], settings: Sequence[str]) -> Panels:
    """All correlations, above the networks themselves with a colour for each batch size."""
    networks = dataclasses.replace(scatter(rows, KAPPA, settings), title="The whole network")
    return Panels([_correlations(ranks), networks], columns=1)


def _correlations(ranks: Mapping[str, Judged]) -> Figure:
    lines = []
    for shift, (measure, title) in enumerate(WORDS.items()):
        correlations_shown = [ranks[name] for name in (*BY_LAYER[measure], measure)]
        lines.append(
            Series(
                title,
                [place + 0.1 * (shift - 1) for place in range(1, len(correlations_shown) + 1)],
                [f.value for f in correlations_shown],
                [f.low for f in correlations_shown],
                [f.high for f in correlations_shown],
            )
        )
    return Figure(
        f"hidden layer; {len(LAYERS) + 1} is the whole network",
        "Spearman correlation with the gap",
        lines,
        points=True,
        title="By layer",
    )
