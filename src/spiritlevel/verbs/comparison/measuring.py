"""Measuring the networks that are to be compared, also at equal confidence.

Every curvature of cross-entropy falls as a network becomes more certain. What remains of a
difference between two networks when both are equally certain is not explained by that. So their
logits are scaled until the mean Gini impurity is the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...engine.workspace import STREAM_FROM
from ...ground.errors import SpiritlevelError, brief
from ...ground.need import or_none
from ...math.curvature import SoftmaxCurvature
from ...measures.asked import MEASURES
from ...measures.confounders import MEASURED_ALONG
from ...measures.setup import AllShared, Setup
from ...measures.verb import measuring, verb
from ...model.arguments import ArgumentCheck, is_flag
from ...model.losses import CrossEntropy
from ...records.measurements import Report
from ...symmetries import temperature_move
from .. import measuring as api
from .comparison import Comparison
from .ranking import counterparts

if TYPE_CHECKING:
    from typing_extensions import Unpack

HALVINGS = 60  # of the interval of temperatures: enough for the last digit
SMALLEST = 1e-6  # the lowest temperature tried: predictions are then uniform


@verb(
    measures=MEASURES,
    match_confidence=ArgumentCheck(is_flag, "True or False"),
    on_report=ArgumentCheck(or_none(callable), "a function, or None", alike=False),
)
def compare(
    setup: Setup,
    models: Mapping[str, nn.Module],
    data: Iterable[Any],
    *,
    measures: str | Sequence[str] | None = None,
    match_confidence: bool = True,
    on_report: Callable[[str, Report], None] | None = None,
    **shared: Unpack[AllShared],
) -> Comparison:
    """Measure several networks on the same data and set them side by side.

    Args:
        models: networks in eval mode by name, such as the checkpoints of one training run.
        data: as for `measure`; every network sees all of it.
        measures: names or patterns; None takes those that suit the networks. Added are the
            confounders (weight and activation norms, Gini impurity, activation frequency), and the
            counterparts by which differences are checked for scale.
        match_confidence: measure once more with the logits scaled until all networks are equally
            confident, to see which differences that explains; twice the cost.
        on_report: called with (name, report) as soon as a network is measured.

    The other arguments are those of `measure`.

    >>> import torch, spiritlevel as sl
    >>> x, y = torch.eye(3), torch.tensor([0, 1, 2])
    >>> small, large = nn.Linear(3, 3), nn.Linear(3, 3)
    >>> found = sl.compare({"small": small, "large": large}, (x, y), measures="head.trace")
    >>> found.measures[:2], "head.kappa" in found.measures
    (['head.trace', 'softmax.gini'], True)
    """
    if not isinstance(models, Mapping) or not all(
        isinstance(m, nn.Module) for m in models.values()
    ):
        raise SpiritlevelError(
            "The 'models' argument must be a mapping of names to modules, {name: model, …}. Got "
            f"{type(models).__name__}."
        )
    reports: dict[str, Report] = {}
    for name, model in models.items():
        reports[name] = measure_for_comparison(setup, model, data, measures)
        if on_report is not None:
            on_report(name, reports[name])
    if not match_confidence:
        return Comparison(reports)
    return matched_comparison(setup, reports, models, data, measures)


def measure_for_comparison(
    setup: Setup,
    model: nn.Module,
    data: Iterable[Any],
    measures: str | Sequence[str] | None,
) -> Report:
    """Measure one network: what was asked for, the confounders and the counterparts."""
    if measures is None:
        asked = [card.name for card in api.cards() if card.default]
    else:
        patterns = [measures] if isinstance(measures, str) else measures
        asked = [card.name for pattern in patterns for card in api.cards(pattern)]
    twins = [twin for name in asked if (twin := counterparts().get(name))]
    also = dict.fromkeys([*MEASURED_ALONG, *twins])
    return api.measured(setup, model, data, measures=measures, also=also)


def matched_comparison(
    setup: Setup,
    reports: Mapping[str, Report],
    models: Mapping[str, nn.Module],
    data: Iterable[Any],
    measures: str | Sequence[str] | None,
) -> Comparison:
    """Compare networks by their reports, and measure them again at equal confidence."""
    if len(reports) < 2:
        return Comparison(reports)
    try:
        copies = equally_confident(setup, models, data)
    except SpiritlevelError as error:
        return Comparison(reports, unmatched=str(error))
    again = {
        name: measure_for_comparison(setup, model, data, measures) for name, model in copies.items()
    }
    return Comparison(reports, matched=again)


@dataclasses.dataclass(frozen=True)
class Logits:
    """One row of logits per target that counts, with its weight in the loss."""

    rows: Tensor
    weights: Tensor

    def gini(self, temperature: float) -> float:
        """Mean Gini impurity of the predictions if all logits are multiplied by this."""
        ones = torch.ones_like(self.weights)
        impurities = SoftmaxCurvature(temperature * self.rows, ones).gini()
        return float((impurities * self.weights).sum() / self.weights.sum())

    def temperature(self, gini: float) -> float:
        """The factor of at most 1 that raises the impurity to this value."""
        low, high = SMALLEST, 1.0
        for _ in range(HALVINGS):
            middle = (low * high) ** 0.5
            low, high = (low, middle) if self.gini(middle) < gini else (middle, high)
        return (low * high) ** 0.5


@measuring()
def equally_confident(
    setup: Setup, models: Mapping[str, nn.Module], data: Iterable[Any]
) -> dict[str, nn.Module]:
    """Copies whose heads are scaled so that all are as uncertain as the least certain one.

    Raises SpiritlevelError where a network has no head to scale.
    """
    heads = {name: _logits(setup, model, data) for name, model in models.items()}
    target = max(logits.gini(1.0) for _, logits in heads.values())
    return {
        name: temperature_move(models[name], head).at(models[name], logits.temperature(target))
        for name, (head, logits) in heads.items()
    }


def _logits(setup: Setup, model: nn.Module, data: Iterable[Any]) -> tuple[str, Logits]:
    """The path of the head, and its logits."""
    workspace = setup.whole().workspace(model, data)
    surface = workspace.surface
    if not isinstance(surface.loss, CrossEntropy):
        raise SpiritlevelError(
            "Equal confidence needs the loss 'cross_entropy', which has class probabilities. Got "
            f"{brief(surface.loss.name)}."
        )
    loss = surface.loss
    with surface.preserved(), torch.no_grad():
        head = workspace.head
        if head.shared or len(head.weight()) >= STREAM_FROM:
            raise SpiritlevelError(
                f"Equal confidence needs a head of its own with fewer than {STREAM_FROM} classes. "
                f"{head.layer!r} has {len(head.weight())} and is "
                f"{'shared' if head.shared else 'not shared'} with other layers."
            )
        rows, weights = [], []
        for where, batch in surface.chunks(
            workspace.plan.footprint.chunk(workspace.memory, sweep=False)
        ):
            outputs, targets = surface.outputs(batch, where=where)
            positions = loss.positions(outputs, targets)
            each = positions.rows(outputs.double())
            rows.append(each.cpu())
            weights.append(loss.row_weights(each, loss.row_targets(targets, positions)).cpu())
    return head.layer, Logits(torch.cat(rows), torch.cat(weights))
