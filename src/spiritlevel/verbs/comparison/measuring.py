"""Measuring the networks that are to be compared, also at equal confidence.

Every curvature of cross-entropy falls as a network becomes more certain. What remains of a
difference between two networks when both are equally certain is not explained by that. So the
logits of the more certain one are scaled until the mean Gini impurity of both is the same. Every
pair has a confidence of its own: a further network, however uncertain, changes nothing for others.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...engine.workspace import STREAM_FROM
from ...ground.errors import SpiritlevelError, brief
from ...ground.need import or_none
from ...math.curvature import SoftmaxCurvature
from ...measures.asked import MEASURES, Asked
from ...measures.confounders import GINI, MEASURED_ALONG
from ...measures.setup import AllShared, Setup
from ...measures.verb import measuring, verb
from ...model.arguments import ArgumentCheck, is_flag
from ...model.losses import CrossEntropy
from ...records.measurements import Report
from ...symmetries import temperature_move
from .. import measuring as api
from .comparison import Comparison
from .scale import ALONG, scales_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

ALIKE = 1e-6  # relative: impurities that differ by less are equal
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
    """Measure several networks on the same data, and rank them by what may rank them.

    A measure may rank networks if no symmetry of theirs changes it. That is audited on 8 samples
    of one network of each architecture, for at most 20 forward-backwards over the data.

    Args:
        models: networks in eval mode by name, such as the checkpoints of one training run.
        data: as for `measure`; every network sees all of it.
        measures: names or patterns; None takes those that suit the networks. Added are the
            confounders (weight and activation norms, Gini impurity, activation frequency), and
            neuron.rho_sum where it comes from the same passes.
        match_confidence: compare each two networks with the logits of the more confident one
            scaled until both are equally confident; one more measurement for each pair.
        on_report: called with (name, report) as soon as a network is measured.

    The other arguments are those of `measure`.

    >>> import torch, spiritlevel as sl
    >>> x, y = torch.eye(3), torch.tensor([0, 1, 2])
    >>> small, large = nn.Linear(3, 3), nn.Linear(3, 3)
    >>> found = sl.compare({"small": small, "large": large}, (x, y), measures="head.kappa")
    >>> found.measures[:2], found.answer().measure
    (['head.kappa', 'softmax.gini'], 'head.kappa')
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
    return compared(setup, reports, models, data, match_confidence=match_confidence)


def measure_for_comparison(
    setup: Setup,
    model: nn.Module,
    data: Iterable[Any],
    measures: str | Sequence[str] | None,
) -> Report:
    """Measure one network: what was asked for, the confounders, and what may rank most networks."""
    swept = any(card.needs.sweep for card in Asked.read(measures).cards)
    also = [*MEASURED_ALONG, *([ALONG] if swept else [])]
    return api.measured(setup, model, data, measures=measures, also=also)


def compared(
    setup: Setup,
    reports: Mapping[str, Report],
    models: Mapping[str, nn.Module],
    data: Iterable[Any],
    *,
    match_confidence: bool,
) -> Comparison:
    """Compare networks by their reports: audit them, and measure them at equal confidence."""
    found = Comparison(reports)
    if found.scales:
        scales, said = scales_of(setup, models, data, list(found.scales))
        found = dataclasses.replace(found, scales=scales, audited=said)
    if not match_confidence or not found.ranked:
        return found
    try:
        return dataclasses.replace(found, matched_pairs=_matched(setup, found, models, data))
    except SpiritlevelError as error:
        return dataclasses.replace(found, unmatched=str(error))


@measuring()
def _matched(
    setup: Setup, found: Comparison, models: Mapping[str, nn.Module], data: Iterable[Any]
) -> dict[str, dict[str, Report]]:
    """Each network at the confidence of every less confident one.

    Raises SpiritlevelError where a network has no head to scale.
    """
    heads = {name: _logits(setup, models[name], data) for name in found.names}
    pairs: dict[str, dict[str, Report]] = {}
    for name, beside in itertools.permutations(found.names, 2):
        target = heads[beside][1].gini(1.0)
        if target > heads[name][1].gini(1.0) * (1 + ALIKE):
            copy = _at(target, models[name], *heads[name])
            report = api.measured(setup, copy, data, measures=found.ranked, also=[GINI])
            pairs.setdefault(name, {})[beside] = report
    return pairs


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
    return {name: _at(target, models[name], *found) for name, found in heads.items()}


def _at(gini: float, model: nn.Module, head: str, logits: Logits) -> nn.Module:
    """A copy whose head is scaled until the predictions have this impurity."""
    return temperature_move(model, head).at(model, logits.temperature(gini))


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
