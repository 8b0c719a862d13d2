"""Paper 003, Figs. 1 and 2: minima of LeNet-5, as trained and randomly rescaled."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ...study.statistics import Correlation, spearman
from ..experiment import Cell, Experiment, Figure, Outcome, Panels, Row, Series, Table
from ..judging.findings import Agreement, Finding, above, estimate, fact, missed, verdict
from ..judging.population import CONFOUNDERS, FEW, GAP, REACHED, scatter, why
from ..judging.rows import column
from ..judging.settings import (
    levels_of,
    levels_tables,
    over_settings,
    partial_over_settings,
    settings_of,
)
from ..judging.trained import LEARNED_LOSS, Limit, Trained
from ..scale_text import ScaleTexts
from .rescaling import LAYERS, NEURONS
from .tasks_networks import CHANGE

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
SETTINGS = ("variant", "batch_size", "model.init")
SAME = 0.02  # a correlation that changes by at most this has survived the rescaling
WEAK = 0.5  # a correlation below this share of its counterpart's is much weaker
Ranks = dict[tuple[str, str], Correlation]  # by measure and version
PAPER = 0.91
BESIDE = "correlation of κ_τ^5 with the gap (here Spearman's; the paper does not say which)"


def analyse(rows: Sequence[Row]) -> Outcome:
    """Rank correlations with the gap before and after the same networks are rescaled."""
    gap = column(rows, GAP)
    ranks = {
        (name, version): over_settings(
            spearman(column(rows, name + version), gap),
            levels_of(rows, name + version, GAP, SETTINGS),
        )
        for name in WORDS
        for version in VERSIONS
    }
    first = ranks[TRACE, ""]
    parts = [_parts(ranks, name) for name in COUNTERPARTS]
    change = max((row[f"{CHANGE}/{LAYERS}"] for row in rows), default=float("nan"))
    return Outcome(
        table=_table(rows, ranks),
        figure=_figure(rows),
        why=why(rows, TRACE, "κ_τ^5", SETTINGS),
        beside={BESIDE: estimate(first)},
        findings=[finding for each in parts for finding in each],
        agrees=_agreement(parts),
        more=levels_tables(rows, tuple(WORDS), SETTINGS),
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


def _parts(ranks: Ranks, name: str) -> list[Finding]:
    """The parts on one measure; without a positive correlation nothing can survive or be lost."""
    title, other = WORDS[name], COUNTERPARTS[name]
    after, lost = (ranks[each, f"/{LAYERS}"].value for each in (name, other))
    correlates = above(
        f"{title} correlates with the gap", ranks[name, ""], paper=PAPER if name == TRACE else None
    )
    survives, weaker = f"{title} keeps it when layers are rescaled", f"{WORDS[other]} does not"
    if correlates.result != "held":
        seen = (_moved(ranks, name), _moved(ranks, other))
        unasked = zip((survives, weaker), seen, strict=True)
        return [
            correlates,
            *(Finding(p, "undecided", f"not judged: it goes {s}") for p, s in unasked),
        ]
    return [
        correlates,
        fact(survives, abs(after - ranks[name, ""].value) <= SAME, _moved(ranks, name)),
        fact(weaker, lost < WEAK * after, f"{lost:+.2f} against {after:+.2f}"),
    ]


def _agreement(parts: list[list[Finding]]) -> Agreement:
    every = [finding for each in parts for finding in each]
    there = any(correlates.result == "held" for correlates, *_ in parts)
    return verdict(every) if there else missed(every)


def _table(rows: Sequence[Row], ranks: Ranks) -> Table:
    table: list[list[Cell]] = []
    for name, title in WORDS.items():
        fixed = partial_over_settings(rows, name, GAP, list(CONFOUNDERS), SETTINGS)
        shown = [ranks[name, version] for version in VERSIONS]
        table.append([title, shown[0].n, *(estimate(c) for c in (*shown, fixed))])
    over = ", interval over settings" if settings_of(rows, SETTINGS) is not None else ""
    ways = (*VERSIONS.values(), "confounders held fixed")
    titles = [f"Spearman, {way}{over}" for way in ways]
    return Table(("measure of the last layer", "n", *titles), table)


def _figure(rows: Sequence[Row]) -> Panels:
    """Fig. 1 of the paper, with a colour for each setting, above its Fig. 2."""
    as_trained = dataclasses.replace(scatter(rows, TRACE, SETTINGS), title="As trained")
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


EXPERIMENT = Experiment(
    name="003-fig-1",
    title="minima of LeNet-5, as trained and rescaled",
    source="Figs. 1 and 2",
    claim=(
        "Over many minima of LeNet-5 on CIFAR-10, κ and κ_τ of the last layer correlate strongly "
        "with the generalization gap and keep doing so when layers are rescaled at random, while "
        "the largest eigenvalue and the trace without the weight norm lose their correlation."
    ),
    analyse=analyse,
    trained=Trained(
        (Limit("train_loss", at_most=LEARNED_LOSS),),
        "The claim is about minima.",
        needed=FEW,
    ),
    columns=(
        *("outcome", "seed", *REACHED, *CONFOUNDERS),
        *(f"{CHANGE}/{LAYERS}", f"{CHANGE}/{NEURONS}"),
        *(name + version for name in WORDS for version in VERSIONS),
    ),
    rule=(
        "for κ^5 and for κ_τ^5 alike the 95 % interval (over settings) of Spearman's correlation "
        "with the gap lies above 0, the rescaling of layers changes that correlation by at most "
        f"{SAME:g}, and the correlation of the same measure without the weight norm is then less "
        "than half as large. "
        "Partly, if at least one of the two correlates and something else fails. "
        f"Networks with a training loss above {LEARNED_LOSS:g} are left out. (At first the "
        "interval was over networks; this was corrected after the first runs, since networks of "
        "one setting are not independent.)"
    ),
    set_up=(
        "In the paper: LeNet-5 on CIFAR-10 by SGD from four initializations, at batch sizes from 4 "
        "to 512 with learning rates from 0.001 to 0.1, roughly in proportion, 9 times each; what "
        "was done here is described below. Each network is then rescaled: every layer but the "
        "last is multiplied by a random factor between 5 and 25 and the next one divided by it; "
        "and, not in the paper, so is every single neuron. The paper calls l = 5 the last hidden "
        "layer; we read it as the fifth of five layers with weights, the one that reads the last "
        "hidden layer. The gap is test loss minus training loss per sample."
    ),
    scaled_down=ScaleTexts(
        "003-fig-1",
        {
            "": (
                "{data.samples} training images instead of 50,000, batches of "
                "{variants.batch_size} instead of 4 to 512 with momentum {training.momentum}, "
                "{seeds} seeds instead of 9; {grid.model.init:count} of the four "
                "initializations, because the fourth, normal with variance 0.1, did not learn "
                "at these rates in a trial; so {runs} networks instead of 144. Training ends at "
                "a loss of {stop.train_loss} or after {training.epochs} epochs; measured on "
                "{measure_options.samples} of the training images."
            ),
            "quick": (
                "{data.samples} training images, {grid.model.init:count} initializations, "
                "{variants.batch_size:count} batch size, {seeds} seeds: a trial."
            ),
            "h200": (
                "The networks of 002-fig-5 with its preset h200, which has to be run first: "
                "{data.samples} training images instead of 50,000, SGD and Adam at several "
                "rates instead of SGD, batches of {grid.batch_size}, one initialization instead "
                "of four, {seeds} seeds; measured on {measure_options.samples} of the training "
                "images."
            ),
            "paper-rates": (
                "{data.samples} training images instead of 50,000. Batches of "
                "{variants.batch_size} with rates of {variants.lr}, as in the paper, without its "
                "batches of 4; {grid.model.init:count} of the four initializations, because the "
                "fourth, normal with variance 0.1, learned at none of these rates in an earlier "
                "series; {seeds} seeds: {runs} networks instead of 144. Training ends when the "
                "gradient of the last layer is small, or after {training.epochs} epochs; measured "
                "on all training images, the last layer alone."
            ),
            "h200-accuracy": (
                "Batches of {variants.batch_size} with rates of {variants.lr}, all in the ratio "
                "of the paper's batches of 512, because networks with more noise did not come to "
                "a training accuracy of 0.999 with the preset h200-full; "
                "{grid.model.init:count} initializations, the fourth a normal one with a standard "
                "deviation of 0.1 instead of a variance of 0.1, with which no network learned; "
                "{seeds} seeds: {runs} networks instead of 144. Training ends after the first "
                "epoch whose running loss is at most {stop.running_loss}, so that all are compared "
                "at one loss, or after {training.epochs} epochs; measured on all training images, "
                "the last layer alone. Settled before the run: a network with a training accuracy "
                "below 0.999 is shown and not judged, and the gap of the losses, the gap of the "
                "accuracies and the test error are shown side by side."
            ),
            "h200-full": (
                "Batches of {variants.batch_size} with rates of {variants.lr}, as in the paper, "
                "without its batches of 4; {grid.model.init:count} of the four initializations, "
                "because the fourth, normal with variance 0.1, learned at none of these rates in "
                "an earlier series; {seeds} seeds: {runs} networks instead of 144. Training ends "
                "when the gradient of the last layer is small, or after {training.epochs} epochs; "
                "measured on all training images, the last layer alone."
            ),
            "paper": (
                "Training ends at a loss of {stop.train_loss}, because the paper says only that "
                "it went on until convergence; measured on {measure_options.samples} of the "
                "training images."
            ),
        },
    ),
    settings=SETTINGS,
    measures=("scaled.lambda_max", "scaled.trace", "relative.kappa", "neuron.rho_sum"),
    paper_values={BESIDE: PAPER},
)
