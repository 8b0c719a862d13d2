"""Measuring the networks that are to be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from ... import api
from ...errors import SpiritlevelError
from ...measures.asked import MEASURES
from ...measures.confounders import MEASURED_ALONG
from ...measures.setup import AllShared, Setup
from ...measures.verb import verb
from ...model.arguments import ArgumentCheck, is_flag
from ...need import or_none
from ...records import Report
from ..equal_confidence import equally_confident
from .comparison import Comparison
from .ranking import counterparts

if TYPE_CHECKING:
    from typing_extensions import Unpack


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
