"""How a run ends: at the last epoch, at a level of training, or by a rule on what was seen.

Levels and rules are outcomes under their own names. Some look at the mean losses and gradients of
the steps of an epoch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from spiritlevel.ground.errors import SpiritlevelError

from ..run_results import EpochRow, History, MeasurementRow
from ..settings.run import RunSettings
from ..settings.sections import StopSettings

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


@dataclasses.dataclass(frozen=True)
class EpochSteps:
    """Means over the batches of an epoch, each seen before its step; None where nobody asked."""

    running_loss: float | None = None
    gradient_norm: float | None = None  # of the mean gradient of all parameters
    head_gradient: float | None = None  # the largest entry of that of the head's weights


class StepMeans:
    """Adds up losses and gradients during an epoch, of one network or of several at once.

    The first dimension of every tensor is the network. Sums stay where they are in memory, so that
    adding to them can be recorded as a CUDA graph.

    Args:
        stops: of the networks; what none of them asks for is not added up.
        head: the path of the head.
    """

    def __init__(self, stops: Sequence[StopSettings], head: str) -> None:
        self._loss_wanted = any(stop.running_loss is not None for stop in stops)
        self._norm_wanted = any(stop.gradient_norm is not None for stop in stops)
        self._head_wanted = any(stop.head_gradient is not None for stop in stops)
        self._head = f"{head}.weight"
        self.forget()

    def forget(self) -> None:
        """Start at nothing, with other networks."""
        self._loss: Tensor | None = None
        self._gradients: dict[str, Tensor] = {}

    @torch.no_grad()
    def add(self, losses: Tensor, gradients: Mapping[str, Tensor | None]) -> None:
        """One step: the mean loss of each network's batch, and its gradients by parameter."""
        if self._loss_wanted:
            if self._loss is None:
                self._loss = torch.zeros_like(losses, dtype=torch.float64)
            self._loss += losses.detach()
        for name, gradient in gradients.items():
            wanted = self._norm_wanted or (self._head_wanted and name == self._head)
            if gradient is None or not wanted:
                continue
            if name not in self._gradients:
                self._gradients[name] = torch.zeros_like(gradient)
            self._gradients[name] += gradient.detach()

    @torch.no_grad()
    def take(self, count: int, *, steps: int) -> list[EpochSteps]:
        """The means over `steps` for each of `count` networks; the next epoch starts at nothing."""
        sums = {name: each.double() for name, each in self._gradients.items()}
        columns: dict[str, list[float]] = {}
        if self._loss is not None:
            columns["running_loss"] = (self._loss / steps).tolist()
            self._loss.zero_()
        if sums and self._norm_wanted:
            squares = torch.stack([each.flatten(1).square().sum(1) for each in sums.values()])
            columns["gradient_norm"] = (squares.sum(0).sqrt() / steps).tolist()
        if self._head_wanted and self._head in sums:
            largest = sums[self._head].abs().flatten(1).amax(1)
            columns["head_gradient"] = (largest / steps).tolist()
        for each in self._gradients.values():
            each.zero_()
        rows = [
            dict(zip(columns, values, strict=True))
            for values in zip(*columns.values(), strict=True)
        ]
        return [EpochSteps(**row) for row in rows] or [EpochSteps()] * count
