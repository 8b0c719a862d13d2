"""Paper 001, Fig. 1: weights times ten, the same decisions, a different sharpness."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from spiritlevel.records.content import Cell, Figure, Series, Table

from ...claims.contrasts import factor
from ...claims.experiment import Experiment, Outcome, Row
from ...claims.findings import above, fact, verdict
from ...claims.numbers import IntervalEstimate, mean, plain
from ...claims.rows import column, grouped
from .tasks_scaling import ALL, PAIR, PLAIN, TEST, TRAIN

NETWORK = "model"
LARGEST = "curvature.lambda_max"
TRACE, KAPPA, GINI = "curvature.trace", "relative.kappa", "softmax.gini"
MEASURES = (LARGEST, TRACE, KAPPA, "neuron.rho_sum", GINI)
WORDS = {
    PLAIN: "as trained",
    ALL: "all weights × 10",
    PAIR: "first layer × 10, second ÷ 10",
}
PAPERS_NETWORK = "resnet18"  # VGG-small was added
FACTOR = f"{PAPERS_NETWORK}: factor of the largest eigenvalue"
VANISHED = 1e-6  # a number below this share of what it was counts as gone


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """Compare each network with its scaled copy, so every run is its own control."""
    table: list[list[Cell]] = []
    lines: list[Series] = []
    for network, group in grouped(rows, NETWORK).items():
        for variant in WORDS:
            if not _has(group, variant):
                continue
            table.append([network, _title(variant), len(group), *_cells(group, variant)])
        lines += _lines(network, group)
    moved = max(
        abs(row[f"{accuracy}/{ALL}"] - row[f"{accuracy}/{PLAIN}"])
        for row in rows
        for accuracy in (TRAIN, TEST)
    )
    same, larger = moved < experiment.thresholds["rounding"], experiment.thresholds["larger"]
    by_network = grouped(rows, NETWORK)
    growth = {network: _growth(group) for network, group in by_network.items()}
    pairs = [
        row[f"{LARGEST}/{PAIR}"] / row[f"{LARGEST}/{PLAIN}"] for row in rows if _has([row], PAIR)
    ]
    stays = fact(
        "training and test accuracy do not change",
        same,
        f"{_most(moved)}, in {len(rows)} networks",
    )
    grows = [
        above(
            f"the largest eigenvalue of {network} grows, and surely {larger:g}-fold",
            factor((row[f"{LARGEST}/{PLAIN}"], row[f"{LARGEST}/{ALL}"]) for row in group),
            1.0,
            ours=larger,
            paper=experiment.paper_values[FACTOR] if network == PAPERS_NETWORK else None,
            comparable=experiment.comparable,
        )
        for network, group in by_network.items()
    ]
    return Outcome(
        table=Table(
            ("network", "weights", "n", "training accuracy", "test accuracy", *MEASURES), table
        ),
        figure=Figure(
            "largest eigenvalue of the Hessian",
            "test accuracy",
            lines,
            log_x=True,
            points=True,
        ),
        reproduced_values=dict(zip(experiment.paper_values, _as_the_paper(rows), strict=True)),
        findings=[stays, *grows],
        agrees=verdict(grows) if same else "no",
        conclusion=_conclusion(moved, growth, pairs, experiment.paper_values[FACTOR]),
        why=_why(rows),
    )


def _title(variant: str) -> str:
    how = ", measures as median (smallest to largest)" if variant == ALL else ""
    return f"{WORDS[variant]}{how}"


def _cells(group: Sequence[Row], variant: str) -> list[Cell]:
    """Means; medians for all weights × 10, where one network can dominate a mean."""
    accuracies: list[Cell] = [mean(column(group, f"{m}/{variant}")) for m in (TRAIN, TEST)]
    show = _spread if variant == ALL else mean
    return [*accuracies, *(show(column(group, f"{m}/{variant}")) for m in MEASURES)]


def _spread(values: Sequence[float | None]) -> str | None:
    recorded = [value for value in values if value is not None]
    if not recorded:
        return None
    middle, low, high = (plain(f(recorded), 3) for f in (statistics.median, min, max))
    return f"{middle} ({low} to {high})"


def _why(rows: Sequence[Row]) -> str:
    """Why trace and κ can vanish although the eigenvalue is large."""
    gone = [row for row in rows if _vanished(row, TRACE) and _vanished(row, KAPPA)]
    if not gone:
        return ""
    counts = ", ".join(
        f"{sum(row in gone for row in group)} of {len(group)} networks {network}"
        for network, group in grouped(rows, NETWORK).items()
    )
    certain, largest = (
        [row[f"{name}/{ALL}"] for row in gone if row.get(f"{name}/{ALL}") is not None]
        for name in (GINI, LARGEST)
    )
    return (
        f"With all weights × 10 the outputs can come so close to one-hot that 1 − ‖p‖² vanishes, "
        f"and trace and κ with it: both are less than {VANISHED:g} of what they were in {counts}. "
        f"In these, 1 − ‖p‖² is at most {plain(max(certain), 3)}, while the largest eigenvalue is "
        f"{plain(min(largest), 3)} to {plain(max(largest), 3)}. The trace is the sum of all "
        "eigenvalues, so negative ones cancel the largest there: it does not tell how curved a "
        "minimum is."
    )


def _vanished(row: Row, name: str) -> bool:
    before, after = row.get(f"{name}/{PLAIN}"), row.get(f"{name}/{ALL}")
    return before is not None and after is not None and after < VANISHED * before


def _has(rows: Sequence[Row], variant: str) -> bool:
    return all(row.get(f"{LARGEST}/{variant}") is not None for row in rows)


def _growth(rows: Sequence[Row]) -> list[float]:
    return [row[f"{LARGEST}/{ALL}"] / row[f"{LARGEST}/{PLAIN}"] for row in rows]


def _lines(network: str, group: Sequence[Row]) -> list[Series]:
    return [
        Series(
            f"{network}, {title}",
            column(group, f"{LARGEST}/{variant}"),
            column(group, f"{TEST}/{variant}"),
        )
        for variant, title in WORDS.items()
        if _has(group, variant)
    ]


def _as_the_paper(rows: Sequence[Row]) -> list[IntervalEstimate]:
    """The numbers of the paper's network, in the order of the paper's values."""
    own = [row for row in rows if row[NETWORK] == PAPERS_NETWORK]
    names = (f"{TRAIN}/{PLAIN}", f"{TEST}/{PLAIN}", f"{LARGEST}/{PLAIN}", f"{LARGEST}/{ALL}")
    return [*(mean(column(own, name)) for name in names), mean(_growth(own))]


def _most(moved: float) -> str:
    return f"the largest change of an accuracy is {moved:.2g}" if moved else "no accuracy changes"


def _conclusion(
    moved: float, growth: dict[str, list[float]], pairs: list[float], theirs: float
) -> str:
    said = ", ".join(
        f"{min(values):.3g} to {max(values):.3g} in {network}" for network, values in growth.items()
    )
    text = (
        f"With all weights × 10 {_most(moved)}, and the largest eigenvalue changes by a factor of "
        f"{said}"
    )
    if pairs:
        text += (
            f"; with two layers scaled against each other the function does not change, but the "
            f"eigenvalue does, by a factor of {min(pairs):.3g} to {max(pairs):.3g}"
        )
    return f"{text}. {_papers_network(growth.get(PAPERS_NETWORK, []), theirs)}"


def _papers_network(factors: Sequence[float], theirs: float) -> str:
    """How large the factor is in the paper's network, which the claim is about."""
    if not factors:
        return "ResNet-18, the paper's network, is not among these."
    if max(factors) < theirs:
        return (
            f"The paper's factor of {theirs:.3g} was not seen in ResNet-18, the paper's "
            f"network: the largest there is {max(factors):.3g}. VGG-small is not in its figure."
        )
    return f"ResNet-18, the paper's network, comes to the paper's factor of {theirs:.3g}."
