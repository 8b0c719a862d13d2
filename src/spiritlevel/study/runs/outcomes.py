"""How a run ends: at the last epoch, at a level of training, or by a rule on what was seen.

Levels and rules are outcomes under their own names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ...errors import SpiritlevelError
from ..settings.run import RunSettings
from ..settings.stop import StopSettings
from .results import EpochRow, History, MeasurementRow
from .step_means import EpochSteps

ALL_EPOCHS = "epochs"  # nothing ended its training before
DIVERGED = "diverged"  # its loss is not finite, and it has no measures
MEASURED = "measured"  # it was trained elsewhere
TASK_DONE = "done"  # a task ended that names no other outcome


OF_STEPS = ("running_loss", "gradient_norm", "head_gradient")


class Ending:
    """Decides after every epoch of a run whether training ends, and why."""

    def __init__(self, stop: StopSettings, epochs: int) -> None:
        self._stop, self._epochs = stop, epochs
        self._rule = stop.new_rule()

    def after(
        self,
        row: EpochRow,
        measured: Sequence[MeasurementRow] | None,
        steps: EpochSteps | None = None,
    ) -> str:
        """Why training ends after this epoch; "" if it goes on.

        `measured` is None for an epoch at which nothing was measured; a rule on flatness does not
        count such epochs. `steps` is what the steps of the epoch saw.
        """
        if not math.isfinite(row.train_loss):
            return DIVERGED
        loss, accuracy = self._stop.train_loss, self._stop.train_accuracy
        if loss is not None and row.train_loss <= loss:
            return "train_loss"
        if accuracy is not None and row.train_accuracy >= accuracy:
            return "train_accuracy"
        if steps is not None and (name := self.reached_by(steps)):
            return name
        if self._met(row, measured):
            return f"{self._stop.rule}_rule"
        return ALL_EPOCHS if row.epoch >= self._epochs else ""

    def reached_by(self, steps: EpochSteps) -> str:
        """The level that the steps of an epoch reached; "" if none. Such an epoch is evaluated."""
        for name in OF_STEPS:
            level, seen = getattr(self._stop, name), getattr(steps, name)
            if level is not None and seen is not None and seen <= level:
                return name
        return ""

    def replay(self, history: History, settings: RunSettings) -> None:
        """Let the rule see the epochs of a training that goes on."""
        for row in history.epochs:
            measured = [each for each in history.measurements if each.epoch == row.epoch]
            self._met(row, measured if settings.measured_at(row.epoch) else None)

    def _met(self, row: EpochRow, measured: Sequence[MeasurementRow] | None) -> bool:
        rule = self._rule
        if rule is None:
            return False
        if not rule.needs_flatness:
            return rule.update(epoch=row.epoch, loss=row.validation_loss)
        if measured is None:
            return False
        assert self._stop.measure is not None  # comes with every rule on flatness
        flatness = _value(measured, self._stop.measure)
        return rule.update(epoch=row.epoch, loss=row.validation_loss, flatness=flatness)


def finite(params: Iterable[Tensor]) -> Tensor:
    """Whether all weights of a network are finite, for each network of a stack.

    Where they are not, the epoch is evaluated at once, and the run ends: nothing is left to train.

    >>> finite([torch.ones(2, 3), torch.tensor([[1.0], [math.inf]])]).tolist()
    [True, False]
    """
    rows = (param.detach().unsqueeze(-1).flatten(1) for param in params)  # a weight may be a number
    return torch.stack([row.isfinite().all(1) for row in rows]).all(0)


def _value(measured: Sequence[MeasurementRow], name: str) -> float:
    for row in measured:
        if (row.measure, row.layer) == (name, ""):
            return row.value
    have = ", ".join(dict.fromkeys(row.measure for row in measured)) or "nothing"
    raise SpiritlevelError(
        f"The study's stop.measure must be one that suits the network. {name!r} was not measured; "
        f"measured were: {have}. Choose one of `spiritlevel list`."
    )
