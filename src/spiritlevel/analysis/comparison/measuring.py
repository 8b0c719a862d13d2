"""Measuring the networks that are to be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from ... import api
from ...engine.precision import Method
from ...errors import SpiritlevelError
from ...measures.confounders import MEASURED_ALONG
from ...measures.options import Options
from ...model.arithmetic import Arithmetic
from ...model.batches import Forward
from ...model.calls import measuring
from ...records import Progress, Report
from ..equal_confidence import equally_confident
from .comparison import Comparison
from .ranking import counterparts


@measuring
def compare(
    models: Mapping[str, nn.Module],
    data: Iterable[Any],
    *,
    measures: str | Sequence[str] | None = None,
    match_confidence: bool = True,
    on_report: Callable[[str, Report], None] | None = None,
    loss: api.Loss = "cross_entropy",
    layers: str | Sequence[str] | None = None,
    head: str | None = None,
    forward: Forward | None = None,
    method: Method = "auto",
    rtol: float = 0.05,
    confidence: float = 0.95,
    max_passes: int = 100,
    options: Options | Mapping[str, Any] | None = None,
    memory: int | None = None,
    arithmetic: Arithmetic = "full",
    seed: int = 0,
    distributed: bool = True,
    progress: Progress | None = None,
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
    arguments: dict[str, Any] = {
        "measures": measures,
        "loss": loss,
        "layers": layers,
        "head": head,
        "forward": forward,
        "method": method,
        "rtol": rtol,
        "confidence": confidence,
        "max_passes": max_passes,
        "options": options,
        "memory": memory,
        "arithmetic": arithmetic,
        "seed": seed,
        "distributed": distributed,
        "progress": progress,
    }
    reports: dict[str, Report] = {}
    for name, model in models.items():
        reports[name] = measure_for_comparison(model, data, **arguments)
        if on_report is not None:
            on_report(name, reports[name])
    return matched_comparison(reports, models, data, match=match_confidence, **arguments)


def measure_for_comparison(
    model: nn.Module,
    data: Iterable[Any],
    *,
    measures: str | Sequence[str] | None,
    **arguments: Any,
) -> Report:
    """Measure one network: what was asked for, the confounders and the counterparts."""
    if measures is None:
        asked = [card.name for card in api.cards() if card.default]
    else:
        patterns = [measures] if isinstance(measures, str) else measures
        asked = [card.name for pattern in patterns for card in api.cards(pattern)]
    twins = [twin for name in asked if (twin := counterparts().get(name))]
    also = dict.fromkeys([*MEASURED_ALONG, *twins])
    return api.measure_also(model, data, also=also, measures=measures, **arguments)


def matched_comparison(
    reports: Mapping[str, Report],
    models: Mapping[str, nn.Module],
    data: Iterable[Any],
    *,
    measures: str | Sequence[str] | None,
    match: bool,
    **arguments: Any,
) -> Comparison:
    """Compare networks by their reports, and measure them again at equal confidence."""
    if not match or len(reports) < 2:
        return Comparison(reports)
    try:
        copies = equally_confident(models, data, **arguments)
    except SpiritlevelError as error:
        return Comparison(reports, unmatched=str(error))
    again = {
        name: measure_for_comparison(model, data, measures=measures, **arguments)
        for name, model in copies.items()
    }
    return Comparison(reports, matched=again)
