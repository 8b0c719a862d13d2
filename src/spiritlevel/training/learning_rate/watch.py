"""What a monitor says about the learning rate: sharpness, its threshold, and a warning."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...engine.weight_space.eigenvalues import VALUE_RTOL
from ...ground.errors import SpiritlevelError
from ...ground.need import need, or_none
from ...measures.setup import Setup
from ...model.distributed import Processes, unwrapped
from ...model.running_statistics import normalizing_by_batch
from ...records.measurements import Status
from ...verbs.spectra import Eigenvalues, preconditioned_eigenvalue
from ..monitor.budget import Every
from .critical_step import critical_step
from .stability_edge import check_known, plain_optimizer, stability_edge

RATES = ("sharpness", "critical")  # what can be asked for
WARN_ABOVE = 1.5
RATE, SHARPNESS, THRESHOLD = "rate.learning_rate", "rate.sharpness", "rate.threshold"
CRITICAL = "rate.critical_sharpness"
UNSEEN = "no step seen"
SYNCHRONIZED = "synchronized statistics"  # their batch is that of all processes
SETTLING = "settling"  # Adam's running means are too short for the threshold to mean much
IN_A_ROW = 3  # critical sharpnesses that it takes for a warning: one alone is mostly noise
Row = dict[str, Any]


BACK = 0.9  # part of a level below 1 that counts as back


class LevelCrossing:
    """Remembers on which side of the level a ratio is."""

    def __init__(self, level: float | None, rows: int = 1) -> None:
        """`level` None never crosses; it takes `rows` ratios in a row to be beyond."""
        self.level, self.rows = level, rows
        # at the edge of stability the ratio swings around 1: all that is one crossing
        self.back = 1.0 if level is None else min(1.0, BACK * level)
        self.beyond = False
        self._above = 0  # ratios in a row

    def crossed(self, ratio: float) -> bool:
        """Whether this ratio goes beyond the level, and the ones since the last return did not.

        >>> crossing = LevelCrossing(1.5)
        >>> [crossing.crossed(ratio) for ratio in (1.0, 1.6, 1.1, 1.6, 0.9, 2.0)]
        [False, True, False, False, False, True]
        >>> crossing = LevelCrossing(1.5, rows=2)
        >>> [crossing.crossed(ratio) for ratio in (9.0, 1.0, 9.0, 9.0, 9.0)]
        [False, False, False, True, False]
        """
        if self.level is None:
            return False
        self._above = self._above + 1 if ratio > self.level else 0
        new = self._above >= self.rows and not self.beyond
        self.beyond = new or (self.beyond and ratio > self.back)
        return new


class RateWatch:
    """The learning rate's part of a monitor's rows. The optimizer is only read.

    For the critical sharpness it copies the weights before a step that a row may follow: with
    every="epoch", before every step.

    A step feels the loss in train mode: layers that normalized by the batch in the last step do so
    when the loss is measured, too. Dropout stays off.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        rates: str | Sequence[str],
        warn_above: float | None,
        every: Every,
    ) -> None:
        check_rates(rates, warn_above)
        self.rates = (rates,) if isinstance(rates, str) else tuple(rates)
        self.optimizer = plain_optimizer(optimizer)
        if "sharpness" in self.rates:
            check_known(self.optimizer)
        self.steps = 0  # made so far, as the monitor counts them
        self._model, self._every = unwrapped(model), every
        self._crossing = LevelCrossing(warn_above, 1 if "sharpness" in self.rates else IN_A_ROW)
        self._vector: Eigenvalues | None = None
        self._before: dict[str, Tensor] = {}  # the weights before the last step, if it was due
        self._rate_before = 0.0
        self._multiple = 1.0  # where the next search begins
        self._by_batch: list[nn.Module] = []  # layers that normalized by the batch in that step
        self._has_seen_modes = False
        self._check_parameters()
        _before_steps(self.optimizer, self)

    @property
    def names(self) -> tuple[str, ...]:
        """The keys of the values in a row."""
        names = [RATE]
        names += [SHARPNESS, THRESHOLD] if "sharpness" in self.rates else []
        return (*names, CRITICAL) if "critical" in self.rates else tuple(names)

    def look_at_modes(self) -> None:
        """Before a step is seen, the modes that the model is in now count as those of training."""
        if not self._has_seen_modes:
            self._by_batch = normalizing_by_batch(self._model)

    def values(self, setup: Setup, data: list[Any]) -> Row:
        """The values for one row, with what there is to say about them."""
        row: Row = {RATE: _largest_rate(self.optimizer)}
        if Processes().size > 1 and any(isinstance(m, nn.SyncBatchNorm) for m in self._by_batch):
            kinds = {"sharpness": SHARPNESS, "critical": CRITICAL}
            return row | {f"{kinds[kind]}.status": SYNCHRONIZED for kind in self.rates}
        if "sharpness" in self.rates:
            row |= self._sharpness(setup, data)
        if "critical" in self.rates:
            row |= self._critical(setup, data)
        return row

    def forget(self) -> None:
        """The row is written: the copy of the weights is about a step of the past now."""
        self._before = {}

    def forget_vectors(self) -> None:
        """Start without the last vector, which was of other samples."""
        self._vector, self._multiple = None, 1.0

    def warning(self, row: Mapping[str, Any]) -> str | None:
        """What to tell the user, once for every time that the edge is crossed."""
        name, rate = type(self.optimizer).__name__, row.get(RATE, math.nan)
        if row.get(f"{SHARPNESS}.status") == SETTLING:
            return None
        if row.get(THRESHOLD) is not None and row.get(SHARPNESS) is not None:
            ratio = row[SHARPNESS] / row[THRESHOLD]
            what = (
                f"The sharpness is {row[SHARPNESS]:.4g} at step {row['step']}, {ratio:.3g} times "
                f"the edge of stability {row[THRESHOLD]:.4g} of {name} at learning rate {rate:.4g}"
            )
        elif "sharpness" not in self.rates and row.get(CRITICAL):
            ratio = row[CRITICAL] * rate / 2
            what = (
                f"The last {IN_A_ROW} updates of {name} up to step {row['step']} were too long, "
                f"this one {ratio:.3g} times: its critical learning rate is {rate / ratio:.4g}, "
                f"not {rate:.4g}"
            )
        else:
            return None
        if not self._crossing.crossed(ratio):
            return None
        return (
            f"{what}. Steps this long make the loss rise along the sharpest direction, and "
            f"training may diverge. Lower the learning rate to {rate / ratio:.2g} or less, or warm "
            "it up more slowly. This is said once, until the sharpness has been below the edge."
        )

    def state_dict(self) -> dict[str, Any]:
        """Whether the edge is crossed; what speeds the next measurement up is not included."""
        return {"beyond": self._crossing.beyond}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue on the same side of the edge, without repeating a warning."""
        self._crossing.beyond = bool(state["beyond"])

    def remember(self) -> None:
        """Copy the weights, if the step that is about to be made will have a row, and its modes."""
        self._by_batch, self._has_seen_modes = normalizing_by_batch(self._model), True
        if "critical" not in self.rates:
            return
        if self._every.unit == "step" and not self._every.due("step", self.steps + 1):
            return
        self._rate_before = _largest_rate(self.optimizer)
        kept, self._before = self._before, {}
        for name, parameter in self._parameters().items():
            weight, copy = parameter.detach(), kept.get(name)
            same = copy is not None and (copy.shape, copy.dtype, copy.device) == (
                *(weight.shape, weight.dtype, weight.device),
            )
            # into the memory of the last copy: fresh memory costs more than the copying
            self._before[name] = copy.copy_(weight) if same and copy is not None else weight.clone()

    def _sharpness(self, setup: Setup, data: list[Any]) -> Row:
        edge = stability_edge(self.optimizer, self._parameters())
        found = preconditioned_eigenvalue(
            setup,
            self._model,
            data,
            edge.scale,
            edge.decay,
            by_batch=self._by_batch,
            start=self._vector,
            rtol=min(VALUE_RTOL, setup.rtol),
            max_passes=setup.max_passes,
        )
        self._vector = found
        row: Row = {RATE: edge.rate, SHARPNESS: found.values[0]}
        row[f"{SHARPNESS}.residual"] = found.errors[0]
        if not edge.settled:
            row[f"{SHARPNESS}.status"] = SETTLING
        elif not found.converged[0]:
            row[f"{SHARPNESS}.status"] = Status.NOT_CONVERGED.value
        # at the start of a warm-up the rate is 0, and nothing is too sharp
        return row | ({THRESHOLD: edge.threshold} if math.isfinite(edge.threshold) else {})

    def _critical(self, setup: Setup, data: list[Any]) -> Row:
        if not self._before:
            return {f"{CRITICAL}.status": UNSEEN}
        parameters = self._parameters()
        found = critical_step(
            setup,
            self._model,
            data,
            self._before,
            {name: parameters[name].detach() for name in self._before},
            by_batch=self._by_batch,
            guess=self._multiple,
        )
        if found.outcome not in ("found", "no rise"):
            return {f"{CRITICAL}.status": found.outcome}
        self._multiple = found.multiple
        row: Row = {CRITICAL: 2 / (self._rate_before * found.multiple)}
        return row if found.outcome == "found" else row | {f"{CRITICAL}.status": found.outcome}

    def _parameters(self) -> dict[str, nn.Parameter]:
        trained = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        named = self._model.named_parameters()
        return {name: p for name, p in named if id(p) in trained and p.requires_grad}

    def _check_parameters(self) -> None:
        parameters = self._parameters()
        if not parameters:
            raise SpiritlevelError(
                "The 'optimizer' argument must train parameters of 'model'. Got "
                f"{type(self.optimizer).__name__} over others. Make it from model.parameters(), "
                "after the model is on its device; for an average of the weights leave it out."
            )
        if any(type(p).__name__ == "DTensor" for p in parameters.values()):
            raise SpiritlevelError(
                "The 'optimizer' argument must hold whole weights. Got weights that are divided "
                "among processes. Leave it out: the other measures work on sharded models."
            )


def check_rates(rates: str | Sequence[str], warn_above: float | None) -> None:
    """Refuse wrong settings before there is a model."""
    asked: list[str] = [rates] if isinstance(rates, str) else list(rates)
    both = "'sharpness', 'critical' or a list of both"
    need("rates", rates, lambda _: bool(asked) and all(each in RATES for each in asked), both)
    multiple = "a multiple of the edge of stability above 0"
    then = "1 warns at the edge itself; None never warns."
    need("warn_above", warn_above, or_none(lambda value: value > 0), multiple, then)


def _before_steps(optimizer: Optimizer, watch: RateWatch) -> None:
    """Have the watch remember the weights before every step, for as long as it exists."""
    alive = weakref.ref(watch)

    def remember(*_: Any) -> None:
        watching = alive()
        if watching is not None:
            with torch.no_grad():
                watching.remember()

    handle = optimizer.register_step_pre_hook(remember)
    weakref.finalize(watch, handle.remove)


def _largest_rate(optimizer: Optimizer) -> float:
    rates = [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]
    if not rates:
        raise SpiritlevelError(
            "The 'optimizer' argument must have a learning rate 'lr' in its parameter groups. Got "
            f"{type(optimizer).__name__} without one. Leave it out."
        )
    return max(rates)
