"""Norms of the weights, the Fisher–Rao norm, and the margin: what flatness is compared with."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ...engine.data_pass import Needs
from ...engine.workspace import Workspace
from ...ground.errors import SpiritlevelError, brief
from ...ground.need import or_none
from ...model.batches import BatchLocation
from ...model.distributed import unwrapped
from ...model.losses import CrossEntropy
from ...records.measurements import Cost, Measurement, Status
from ..options import Option
from ..registry import EVERY, Measured, measure, once
from .along_weights import Radial, check_homogeneous, homogeneous, radial

NOTHING = Needs()
MARGINS = Needs(margins=True)
QUANTILE = 0.1
ALONG = "derivative along the weights"  # taken once for both
LIANG = "Liang et al. 2019, Fisher-Rao Metric, Geometry, and Complexity of Neural Networks"
JIANG = "Jiang et al. 2020, Fantastic Generalization Measures and Where to Find Them"


def _holds_weights(value: object) -> bool:
    return isinstance(value, Mapping | nn.Module)


INITIAL = Option(
    "initial",
    None,
    or_none(_holds_weights),
    "a model or its state_dict",
    "the model or state_dict before training",
    shown=lambda value: "given" if _holds_weights(value) else type(value).__name__,
)


def class_targets(workspace: Workspace, name: str) -> None:
    """The loss is a cross-entropy, and its targets are class numbers."""
    loss = workspace.surface.loss
    if not isinstance(loss, CrossEntropy):
        raise SpiritlevelError(
            f"The measure {name!r} needs the loss 'cross_entropy' with class numbers as targets. "
            f"Got {brief(loss.name)}. Leave it out of 'measures'."
        )
    kind = _target_type(workspace)
    if kind.is_floating_point:
        raise SpiritlevelError(
            f"The measure {name!r} needs class numbers as targets: a margin is that of one class. "
            f"Got probabilities ({kind}). Pass y.argmax(dim=1) as "
            "targets if the largest one is the class."
        )


@once
def _target_type(workspace: Workspace) -> torch.dtype:
    batch = workspace.surface.first_samples(1)
    with torch.no_grad():
        _, targets = workspace.surface.outputs(batch, where=BatchLocation(0))
    return targets.dtype


def initial(workspace: Workspace, name: str) -> dict[str, Tensor]:
    """The measured parameters before training, in float64."""
    given = workspace.options.initial
    if given is None:
        raise SpiritlevelError(
            f"The measure {name!r} needs the weights from before training. Pass "
            "options={'initial': model_or_state_dict}, for example a copy.deepcopy(model) made "
            "before the first step."
        )
    state: dict[str, Tensor] = {}
    if isinstance(given, nn.Module):
        state.update(unwrapped(given).named_parameters(remove_duplicate=False))
    else:
        state.update(given)
    tied = workspace.surface.layers.tied
    return {
        key: _initial_value(state, key, tied.get(key), parameter, name)
        for key, parameter in workspace.surface.parameters.items()
    }


def _initial_value(
    state: dict[str, Tensor], key: str, other: str | None, parameter: Tensor, name: str
) -> Tensor:
    value = state.get(key) if other is None else state.get(key, state.get(other))
    if value is None:
        names = ", ".join(list(state)[:4]) or "nothing"
        raise SpiritlevelError(
            f"The option 'initial' must hold every measured parameter for the measure {name!r}. "
            f"{key!r} is missing; it holds {names}{', …' if len(state) > 4 else ''}. Pass the same "
            "network from before training, or its state_dict under the same names."
        )
    if value.shape != parameter.shape:
        raise SpiritlevelError(
            f"The option 'initial' must hold parameters of the network's shapes for the measure "
            f"{name!r}. {key!r} has shape {tuple(value.shape)} there and {tuple(parameter.shape)} "
            "in the network. Pass the same network from before training."
        )
    if not bool(torch.isfinite(value).all()):
        raise SpiritlevelError(
            f"The option 'initial' must be finite for the measure {name!r}. {key!r} holds NaN or "
            "infinity. Load another copy of the weights from before training."
        )
    return value.detach().to(parameter.device, torch.float64)


margin_measure = functools.partial(
    measure,
    invariant=EVERY,
    direction="larger is flatter",
    needs=MARGINS,
    requires=(class_targets,),
)
radial_measure = functools.partial(
    measure,
    invariant=EVERY - {"free_shift"},
    cost="2 forwards and 1 derivative of the outputs along the weights",
    further_cost=lambda workspace: Cost(forwards=2),
    shared_work=ALONG,
)
size_measure = functools.partial(measure, direction=None, cost="nothing beyond the shared pass")


@size_measure(
    name="norms.weight",
    summary="Euclidean norm of all measured parameters",
    formula=r"\|\theta\|_2",
    paper="Petzka et al. 2021, Relative Flatness and Generalization, Figure 5 (weight norm)",
    invariant={"unit_permute", "batch_split"},
    misleads=(
        "Rescaling changes it at will without changing the function. Biases and normalization "
        "parameters are included."
    ),
)
def weight(workspace: Workspace) -> Measured:
    """The length of each layer's part, and of the whole."""
    return _euclidean(workspace, "norms.weight", workspace.perturbed.weights)


@size_measure(
    name="norms.distance",
    summary="Euclidean distance of all measured parameters from where training started",
    formula=r"\|\theta - \theta_0\|_2",
    paper=JIANG + " (distance from initialization)",
    invariant={"batch_split"},
    misleads=(
        "It compares weight by weight: the same function with its units renumbered, or with "
        "rescaled weights, counts as far away."
    ),
    requires=(initial,),
    options=(INITIAL,),
)
def distance(workspace: Workspace) -> Measured:
    """The length of each layer's part, and of the whole."""
    before = initial(workspace, "norms.distance")
    now = workspace.perturbed.weights
    moved = {name: value.double() - before[name] for name, value in now.items()}
    return _euclidean(workspace, "norms.distance", moved)


@radial_measure(
    name="norms.fisher_rao",
    summary="Squared Fisher–Rao norm: how a sample's loss changes when all weights grow together",
    formula=r"\operatorname{mean}_n \langle \theta, \nabla_\theta \ell_n \rangle^2",
    paper=LIANG + ", definition of the Fisher–Rao norm",
    misleads=(
        "It looks at one direction of the weights only, and goes to 0 with the loss of a network "
        "that fits its labels. The norm itself is the square root. Each position of a sequence or "
        "an image counts as a sample."
    ),
)
def fisher_rao(workspace: Workspace) -> Measured:
    """The norm with the labels of the data."""
    return Measured(_radial_measurement(workspace, "norms.fisher_rao", radial(workspace), "labels"))


@radial_measure(
    name="norms.fisher_rao_model",
    summary="Squared Fisher–Rao norm for labels that the model itself would draw: θᵀ GGN θ",
    formula=r"\operatorname{mean}_n\, (J_n \theta)^\top \nabla^2_z \ell_n\, (J_n \theta)",
    paper=LIANG + ", definition of the Fisher–Rao norm, with labels from the model",
    misleads=(
        "Like norms.fisher_rao; it is small for a confident network, right or wrong. With a loss "
        "other than cross-entropy it is the quadratic form of the GGN, which is at best a Fisher "
        "information up to a factor."
    ),
)
def fisher_rao_model(workspace: Workspace) -> Measured:
    """The mean over the labels is taken in closed form: nothing is drawn."""
    return Measured(
        _radial_measurement(workspace, "norms.fisher_rao_model", radial(workspace), "model")
    )


@measure(
    name="norms.fisher_rao_closed",
    summary="Squared Fisher–Rao norm of a homogeneous network, from its outputs alone",
    formula=r"k^2 \operatorname{mean}_n \langle \nabla_z \ell_n, z_n \rangle^2",
    paper=LIANG + ", closed form for rectifier networks, with the degree k for their L + 1",
    invariant=EVERY,
    misleads=(
        "Only for networks without biases and normalization; others are refused. Deeper networks "
        "have a larger k, and so a larger value for the same outputs."
    ),
    requires=(check_homogeneous,),
    cost="3 forwards",
    further_cost=lambda workspace: Cost(forwards=2),
)
def fisher_rao_closed(workspace: Workspace) -> Measured:
    """Equal to norms.fisher_rao up to round-off."""
    homogeneity = homogeneous(workspace, "norms.fisher_rao_closed")
    factors = [float(homogeneity.degree**2)]
    return Measured(
        Measurement(
            "norms.fisher_rao_closed",
            homogeneity.moments.mean(["labels"], factors),
            exact=True,
            data_stderr=homogeneity.moments.stderr(["labels"], factors),
            text=f"degree {homogeneity.degree}",
            cost=workspace.run(NOTHING).cost + homogeneity.cost,
        )
    )


@margin_measure(
    name="norms.margin",
    summary=(
        "10 % quantile over the data of the margin: the label's output minus the largest other one"
    ),
    formula=r"\operatorname{quantile}_{0.1,\,n} \bigl(z_{n,y_n} - \max_{j \ne y_n} z_{n,j}\bigr)",
    paper=JIANG + " (margin)",
    misleads=(
        "Negative if more than a tenth of the targets is classified wrongly. Larger outputs mean a "
        "larger margin: dividing by a norm is left to the reader. Every target counts once, "
        "whatever its class weight."
    ),
)
def margin(workspace: Workspace) -> Measured:
    """Linear interpolation between the two nearest of the sorted margins."""
    run = workspace.run(MARGINS)
    value = _quantile(torch.cat(run.margins), QUANTILE)
    return Measured(Measurement("norms.margin", value, exact=True, cost=run.cost))


@margin_measure(
    name="norms.margin_mean",
    summary="Mean over the data of the margin: the label's output minus the largest other one",
    formula=r"\operatorname{mean}_n \bigl(z_{n,y_n} - \max_{j \ne y_n} z_{n,j}\bigr)",
    paper=JIANG + " (margin), as a mean",
    misleads="Like norms.margin; a few easy samples can dominate it.",
)
def margin_mean(workspace: Workspace) -> Measured:
    """The mean margin over all targets that are not ignored."""
    run = workspace.run(MARGINS)
    return Measured(
        Measurement(
            "norms.margin_mean",
            run.margin.mean(["margin"]),
            exact=True,
            data_stderr=run.margin.stderr(["margin"]),
            cost=run.cost,
        )
    )


def _euclidean(workspace: Workspace, name: str, values: Mapping[str, Tensor]) -> Measured:
    squares = {key: float(value.double().square().sum()) for key, value in values.items()}
    cost = workspace.run(NOTHING).cost

    def norm(keys: list[str]) -> Measurement:
        value = math.sqrt(math.fsum(squares[key] for key in keys))
        return Measurement(name, value, exact=True, cost=cost)

    layers = {layer: norm(keys) for layer, keys in workspace.surface.layers.owned().items()}
    return Measured(norm(list(squares)), layers)


def _radial_measurement(
    workspace: Workspace, name: str, derivative: Radial, row: str
) -> Measurement:
    value, residual = derivative.moments.mean([row]), derivative.residual(row)
    precise = residual is None or residual <= workspace.precision.rtol * abs(value)
    return Measurement(
        name,
        value,
        exact=residual is None,
        residual=residual,
        data_stderr=derivative.moments.stderr([row]),
        status=Status.OK if precise else Status.NOT_CONVERGED,
        text=_method_text(derivative.method, precise=precise),
        cost=workspace.run(NOTHING).cost + derivative.cost,
    )


def _method_text(method: str, *, precise: bool) -> str:
    if method != "difference":
        return ""
    text = "from differences of outputs, because the model cannot be differentiated this way"
    return text if precise else f"{text}; steps of two lengths disagree. Try float64."


def _quantile(values: Tensor, share: float) -> float:
    """The quantile with linear interpolation, as numpy has it.

    >>> _quantile(torch.tensor([3.0, 1.0, 2.0]), 0.25)
    1.5
    """
    ordered = values.sort().values
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return float(ordered[low] + (place - low) * (ordered[high] - ordered[low]))
