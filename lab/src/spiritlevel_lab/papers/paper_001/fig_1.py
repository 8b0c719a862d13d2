"""Paper 001, Fig. 1: weights times ten, the same decisions, a different sharpness.

The task trains one network, scales its weights, and measures it again.
"""

from __future__ import annotations

import copy
import dataclasses
import statistics
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from spiritlevel.records.content import Cell, Figure, Series, Table
from spiritlevel.symmetries.named_layers import rescale_layers

from ...claims.contrasts import factor
from ...claims.experiment import Experiment, Outcome, Row
from ...claims.findings import above, fact, verdict
from ...claims.numbers import IntervalEstimate, mean, plain
from ...claims.rows import column, grouped
from ...population.registry import read_task, task
from ...population.run_results import MeasurementRow, RunResult
from ...population.runs.networks import NetworkRun
from ...population.runs.running import evaluate, measure_network, train
from ...population.runs.tasks import network_result
from ...population.settings.run import RunSettings

PLAIN, ALL, PAIR = "plain", "all", "pair"
TRAIN, TEST = "task.train_accuracy", "task.test_accuracy"
WEIGHTED = (nn.Conv2d, nn.Linear)


@dataclasses.dataclass(frozen=True)
class ScalingArguments:
    """What the weights are multiplied by."""

    factor: float = 10.0


@task("tasks_scaling", arguments=ScalingArguments)
def run(settings: RunSettings, device: str | torch.device = "cpu") -> RunResult:
    """Every number comes as NAME/plain, NAME/all (all weights) and NAME/pair (one up, one down)."""
    arguments = read_task(settings, ScalingArguments)
    run = NetworkRun.start(settings, device)
    train(run)
    data = run.data
    rows: list[MeasurementRow] = []
    accuracies: dict[str, float] = {}
    for name, variant in variants(run.model.eval(), arguments.factor).items():
        scaled = dataclasses.replace(run, model=variant)
        rows += [
            dataclasses.replace(row, measure=f"{row.measure}/{name}")
            for row in measure_network(scaled, settings.measures)
            if row.layer == ""
        ]
        accuracies[f"{TRAIN}/{name}"] = evaluate(variant, data.x, data.y)[1]
        accuracies[f"{TEST}/{name}"] = evaluate(variant, data.test_x, data.test_y)[1]
    return network_result(run, accuracies, rows, device=device)


def variants(model: nn.Module, factor: float) -> dict[str, nn.Module]:
    """The network as it is, with all weights scaled, and with two layers scaled against each other.

    The last only where two layers follow each other with nothing but a ReLU and pooling between
    them: there the function itself stays the same.
    """
    networks = {PLAIN: model, ALL: scaled_weights(model, factor)}
    if isinstance(getattr(model, "conv2", None), nn.Conv2d) and not hasattr(model, "bn1"):
        networks[PAIR] = rescale_layers(model, "conv1", "conv2", factor)
    return networks


@torch.no_grad()
def scaled_weights(model: nn.Module, factor: float) -> nn.Module:
    """A copy of a ReLU network with all weights times `factor`; its outputs keep their proportions.

    If the inputs of a layer have grown by s, its outputs grow by s × factor, so its bias is
    multiplied by that. A BatchNorm's running statistics are scaled like its inputs, and its weights
    and biases are multiplied like all others. Layers must be listed in the order of their use.
    """
    scaled = copy.deepcopy(model)
    growth = 1.0
    for module in scaled.modules():
        if isinstance(module, WEIGHTED):
            growth *= factor
            module.weight.mul_(factor)
            if module.bias is not None:
                module.bias.mul_(growth)
        elif isinstance(module, _BatchNorm):
            _follow(module, growth)
            module.weight.mul_(factor)
            module.bias.mul_(factor)
            growth = factor
    return scaled


def _follow(norm: _BatchNorm, growth: float) -> None:
    """Scale the running statistics to match inputs that have grown, eps included."""
    mean, variance = norm.running_mean, norm.running_var
    assert isinstance(mean, Tensor)
    assert isinstance(variance, Tensor)
    mean.mul_(growth)
    variance.add_(norm.eps).mul_(growth**2).sub_(norm.eps)


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
