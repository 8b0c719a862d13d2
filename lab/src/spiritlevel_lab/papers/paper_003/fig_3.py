"""Paper 003, Figs. 3 to 6: a perceptron on MNIST, flatness by layer, neuron and network."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from ...claims.findings import (
    above,
    estimate,
    every,
    fact,
    verdict,
)
from ...claims.population import (
    CONFOUNDERS,
    FEW,
    GAP,
    REACHED,
    correlations,
    scatter,
    why,
)
from ...claims.rows import column, grouped
from ...claims.settings import levels_tables
from ...claims.trained import Limit, Trained
from ...statistics import Correlation, spearman
from ..experiment import (
    Experiment,
    Figure,
    Outcome,
    Panels,
    Row,
    Series,
)
from ..scale_text import ScaleTexts

LAYERS = ("fc1", "fc2", "fc3", "fc4")  # the hidden ones
KAPPA, SUM, MAX = "scaled.trace", "neuron.rho_sum", "neuron.rho_max"
NETWORK = {  # of the whole network, and the measure of a layer that it is made of
    "scaled.trace_max": KAPPA,
    KAPPA: KAPPA,
    MAX: MAX,
    SUM: SUM,
}
WORDS = {KAPPA: "κ_τ^l (scaled.trace)", SUM: "ρ_σ^l (neuron.rho_sum)", MAX: "ρ^l (neuron.rho_max)"}
SETTINGS = ("variant",)
LARGEST_LOSS = 0.07  # the paper leaves out networks with a larger training loss
BESIDE = "smallest correlation of κ_τ^l over the hidden layers (paper: at least)"


def of_layer(measure: str, layer: str) -> str:
    """The name of the column that holds a measure of one layer."""
    return f"{measure}[{layer}]"


BY_LAYER = {measure: [of_layer(measure, layer) for layer in LAYERS] for measure in WORDS}


def analyse(rows: Sequence[Row]) -> Outcome:
    """Does every layer correlate with the gap, and the whole network more than each layer?"""
    of_layers = [name for names in BY_LAYER.values() for name in names]
    table, ranks = correlations(rows, [*of_layers, *NETWORK], SETTINGS)
    ahead = [n for n, m in NETWORK.items() if ranks[n].value > _most(ranks, BY_LAYER[m])]
    findings = [
        every(
            "κ_τ of every hidden layer correlates with the gap (Fig. 3)",
            [above(name, ranks[name]) for name in BY_LAYER[KAPPA]],
        ),
        every(
            "neuron-wise flatness of every hidden layer correlates too (Figs. 4 and 5)",
            [above(name, ranks[name]) for name in (*BY_LAYER[SUM], *BY_LAYER[MAX])],
        ),
        fact(
            "each measure of the network correlates more than its layers (Fig. 6)",
            len(ahead) == len(NETWORK),
            f"{len(ahead)} of {len(NETWORK)} do",
        ),
    ]
    weakest = min((ranks[name] for name in BY_LAYER[KAPPA]), key=lambda found: found.value)
    return Outcome(
        table=table,
        more=levels_tables(rows, list(NETWORK), SETTINGS),
        figure=_figure(rows, ranks),
        why=_why(rows) if len(rows) >= FEW else "",
        beside={BESIDE: estimate(weakest)},
        findings=findings,
        agrees=verdict(findings) if len(rows) >= FEW else "undecided",
        conclusion=_conclusion(ranks, len(rows)),
    )


def _most(ranks: Mapping[str, Correlation], names: Sequence[str]) -> float:
    return max(ranks[name].value for name in names)


def _conclusion(ranks: Mapping[str, Correlation], n: int) -> str:
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


def _why(trained: Sequence[Row]) -> str:
    """What correlates with both κ_τ and the gap, and what is left at one batch size."""
    confounded = why(trained, KAPPA, "κ_τ of the network", SETTINGS)
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


def _figure(rows: Sequence[Row], ranks: Mapping[str, Correlation]) -> Panels:
    """All correlations, above the networks themselves with a colour for each batch size."""
    networks = dataclasses.replace(scatter(rows, KAPPA, SETTINGS), title="The whole network")
    return Panels([_correlations(ranks), networks], columns=1)


def _correlations(ranks: Mapping[str, Correlation]) -> Figure:
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


EXPERIMENT = Experiment(
    name="003-fig-3",
    title="a perceptron on MNIST: flatness by layer, neuron and network",
    source="Figs. 3, 4, 5 and 6",
    claim=(
        "For networks of four hidden layers on MNIST, κ_τ of every hidden layer correlates "
        "strongly with the generalization gap, neuron-wise flatness of every layer does so too "
        "though it differs between layers, and each measure of the whole network correlates more "
        "strongly than those of single layers."
    ),
    analyse=analyse,
    trained=Trained(
        (Limit("train_loss", at_most=LARGEST_LOSS),),
        "The paper leaves out networks with a larger loss.",
        needed=FEW,
    ),
    columns=(
        *("outcome", *SETTINGS, "seed", *REACHED, *CONFOUNDERS),
        *(name for names in BY_LAYER.values() for name in names),
        *NETWORK,
    ),
    rule=(
        "the 95 % intervals (over settings) of Spearman's correlation with the gap lie above 0 for "
        "κ_τ of all four hidden layers (Fig. 3) and for ρ_σ and ρ of all of them (Figs. 4, 5), and "
        "each of the four measures of the network has a larger correlation than all of its "
        "layers (Fig. 6). "
        f"Partly, if one or two of the three hold. With fewer than {FEW} networks nothing is "
        "decided. (The last sentence was added after a run that left 8.)"
    ),
    set_up=(
        "A perceptron with ReLU and hidden layers of 50, 50, 50 and 30 units, Xavier-normal start, "
        "SGD at four batch sizes with learning rates in proportion; networks with a training loss "
        f"above {LARGEST_LOSS:g} are left out, as in the paper. The paper's learning rates, 0.02 "
        "to 1.6 for batches of 1,000 to 8,000, are not in proportion. Two readings are: 0.2 to "
        "1.6, taken by the presets h200 and paper, and 0.02 to 0.16, taken by the preset "
        "h200-low-rates. The largest neuron or layer of a network can be that of one layer "
        "throughout; its measure then cannot correlate more than that layer's."
    ),
    scaled_down=ScaleTexts(
        "003-fig-3",
        {
            "": (
                "{data.samples} training images instead of 60,000 and batches of "
                "{variants.batch_size} instead of 1,000 to 8,000, at the same ratio of learning "
                "rate to batch size; {training.epochs} epochs; {seeds} seeds each; measured on "
                "{measure_options.samples} of the training images."
            ),
            "quick": (
                "{data.samples} training images, {variants.batch_size:count} batch sizes, "
                "{seeds} seeds each, {training.epochs} epochs: a trial."
            ),
            "h200": (
                "{training.epochs} epochs and {seeds} seeds for each batch size, because the "
                "paper gives neither; measured on {measure_options.samples} of the "
                "{data.samples} training images."
            ),
            "h200-low-rates": (
                "Learning rates of {variants.lr:to} instead of 0.2 to 1.6. {seeds} seeds for "
                "each batch size, because the paper does not say how many. {training.epochs} "
                "epochs, because one network trained beforehand still had a loss above "
                f"{LARGEST_LOSS:g}"
                " after 150; its flatness was not looked at. Measured on "
                "{measure_options.samples} of the {data.samples} training images."
            ),
            "h200-full": (
                "Learning rates of {variants.lr:to} instead of 0.2 to 1.6, with which few networks "
                "learn. All are trained to a loss of {stop.train_loss}, at most {training.epochs} "
                "epochs, and measured on all {data.samples} training images; {seeds} seeds for "
                "each "
                "batch size, because the paper does not say how many."
            ),
            "paper": (
                "{training.epochs} epochs and {seeds} seeds for each batch size, because the "
                "paper gives neither; measured on {measure_options.samples} of the "
                "{data.samples} training images."
            ),
        },
    ),
    measures=(KAPPA, "scaled.trace_max", SUM, MAX),
    paper_values={BESIDE: 0.7},
    settings=SETTINGS,
)
