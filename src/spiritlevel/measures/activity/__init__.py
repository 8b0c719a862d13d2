"""Activity inside a network: how often rectifiers let something through, and how large it is."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

from ...engine.activity import Activity, ActivityKind
from ...engine.data_pass import Needs, PassResult
from ...engine.moments import Moments
from ...engine.workspace import Workspace
from ...ground.errors import SpiritlevelError
from ...records.measurements import Cost, Measurement
from ..registry import EVERY, Measured, measure

ACTIVITY = Needs(activity=True)
PAPER = "Sharpness can be manipulated and misleading for generalization"
ALL_DEAD = "all outputs are dead"


def rectifier(workspace: Workspace, name: str) -> None:
    """A network with an activation that is exactly 0 for some inputs."""
    if not workspace.activation_sites.rectifiers:
        raise SpiritlevelError(
            f"The measure {name!r} needs a network with rectifiers: nn.ReLU, F.relu, ReLU6, "
            "clamp(min=0) or the like, whose outputs are exactly 0. The network has none. Other "
            "activations have no dead outputs; measure activity.activation_norm instead."
        )


def layer_inputs(workspace: Workspace, name: str) -> None:
    """A measured layer whose inputs are numbers, not token indices."""
    if not workspace.activation_sites.layers:
        raise SpiritlevelError(
            f"The measure {name!r} needs a trainable linear or convolutional layer that the model "
            f"calls, among the chosen layers. Got {', '.join(workspace.surface.layers.owned())}. "
            "Choose other 'layers'."
        )


rectifier_measure = functools.partial(
    measure, invariant=EVERY, direction=None, needs=ACTIVITY, requires=(rectifier,)
)


@rectifier_measure(
    name="activity.frequency",
    summary="Share of a rectifier's outputs that are not 0, without dead outputs (η)",
    formula=r"\operatorname{mean}_l \operatorname{mean}_n"
    r" \frac{\#\{i : a^{(l)}_{n,i} \ne 0\}}{N_l - P_l}",
    paper=PAPER + ", section 2 (activation frequency)",
    misleads=(
        "Every rectifier counts the same, however few outputs it has. Every sample and position "
        "counts, including padding and positions that the loss ignores."
    ),
)
def frequency(workspace: Workspace) -> Measured:
    """At each place where a rectifier is applied, and the mean over the places."""
    run, seen = _seen(workspace, "rectifiers")
    live = {place: int(bits.sum()) for place, bits in seen.alive.items()}

    def share(places: Iterable[str]) -> Measurement:
        factors = {place: 1.0 / live[place] if live[place] else 0.0 for place in places}
        weights = [factor / len(factors) for factor in factors.values()]
        return Measurement(
            "activity.frequency",
            seen.active.mean(factors, weights),
            exact=True,
            data_stderr=seen.active.stderr(factors, weights),
            text="" if any(weights) else ALL_DEAD,
            cost=run.cost,
        )

    return Measured(share(live), {place: share([place]) for place in live})


@rectifier_measure(
    name="activity.death",
    summary="Share of rectified outputs that are 0 for every sample (ξ)",
    formula=r"\frac{\sum_l P_l}{\sum_l N_l}",
    paper=PAPER + ", section 2 (death frequency)",
    misleads=(
        "It falls with every added sample: an output that is rarely used looks dead in a small "
        "data set. The network's value counts outputs, so wide layers decide."
    ),
)
def death(workspace: Workspace) -> Measured:
    """At each place where a rectifier is applied, and over all outputs together."""
    run, seen = _seen(workspace, "rectifiers")
    totals = {place: bits.numel() for place, bits in seen.alive.items()}
    dead = {place: totals[place] - int(bits.sum()) for place, bits in seen.alive.items()}

    def share(places: Iterable[str]) -> Measurement:
        value = sum(dead[place] for place in places) / sum(totals[place] for place in places)
        return Measurement("activity.death", value, exact=True, cost=run.cost)

    return Measured(share(totals), {place: share([place]) for place in totals})


@measure(
    name="activity.activation_norm",
    summary="Norm of each layer's input: the root of its mean square over the samples",
    formula=r"\Bigl(\sum_l \operatorname{mean}_n \|a_n^{(l-1)}\|_2^2\Bigr)^{1/2}",
    paper=PAPER + ", section 3.1 (s_l) and Figure 3c",
    invariant={"unit_permute", "batchnorm_absorb", "batchnorm_fold", "logit_shift", "batch_split"},
    misleads=(
        "Rescaling the weights changes it without changing the function. The inputs of the first "
        "layer are the data themselves. A convolution counts its whole input map once, not each "
        "patch. The calls of a layer that is called several times add up. A weight that is used "
        "without calling its layer is not counted. The network's value is the root of the sum of "
        "squares over layers."
    ),
    direction=None,
    needs=ACTIVITY,
    requires=(layer_inputs,),
)
def activation_norm(workspace: Workspace) -> Measured:
    """For each linear or convolutional layer, and the root of the sum of squares."""
    run, seen = _seen(workspace, "inputs")
    squares: Moments = seen.squares

    def norm(layers: list[str]) -> Measurement:
        value = math.sqrt(squares.mean(layers))
        error = squares.stderr(layers)
        if error is not None:  # of the root, to first order
            error = error / (2 * value) if value else 0.0
        return Measurement(
            "activity.activation_norm",
            value,
            exact=True,
            data_stderr=error,
            cost=run.cost,
        )

    layers = list(squares.index)
    return Measured(norm(layers), {layer: norm([layer]) for layer in layers})


@measure(
    name="activity.gradient_norm",
    summary="Norm of the loss gradient in each layer's parameters",
    formula=r"\|\nabla_\theta L\|_2",
    paper=PAPER + ", appendix A.3 (gradient norm)",
    invariant={"unit_permute", "logit_shift", "batch_split"},
    misleads=(
        "Rescaling the weights changes it without changing the function. It is the norm of the "
        "gradient of the mean loss over all data, not the mean of the norms over batches."
    ),
    direction=None,
    cost="2 forwards, 1 backward",
    further_cost=lambda workspace: Cost(forwards=1, backwards=1),
)
def gradient_norm(workspace: Workspace) -> Measured:
    """For the parameters of each layer, and for all."""
    run = workspace.run(Needs())
    gradient = workspace.perturbed.unperturbed.gradient
    squares = {name: float(value.square().sum()) for name, value in gradient.items()}
    # each sample went forward and back once, here or in another measure that needed the same
    cost = run.cost + Cost(forwards=run.num_samples, backwards=run.num_samples)

    def norm(names: Iterable[str]) -> Measurement:
        value = math.sqrt(math.fsum(squares[name] for name in names))
        return Measurement("activity.gradient_norm", value, exact=True, cost=cost)

    layers = {layer: norm(names) for layer, names in workspace.surface.layers.owned().items()}
    return Measured(norm(squares), layers)


def _seen(workspace: Workspace, kind: ActivityKind) -> tuple[PassResult, Activity]:
    run = workspace.run(ACTIVITY)
    assert run.activity is not None
    run.activity.refuse(kind)
    return run, run.activity
