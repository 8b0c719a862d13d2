"""Flatness while a network trains, measured on fixed samples without changing the training."""

from __future__ import annotations

import contextlib
import inspect
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ...engine.weight_space.eigenvalues import VALUE_RTOL
from ...ground.errors import SpiritlevelError
from ...ground.need import is_number, or_none
from ...measures.asked import MEASURES
from ...measures.eigenvalues import ENDS  # these start from the vector of the row before
from ...measures.setup import AllShared, OfProducts, Setup
from ...model.arguments import ArgumentCheck, check_arguments, check_network
from ...model.batches import num_samples
from ...model.distributed import Processes
from ...results import Measurement, Status
from ...verbs.measuring import cards, measure, measured, preflight
from ...verbs.spectra import Eigenvalues, eigenvalues
from ..learning_rate.watch import RATES, WARN_ABOVE, RateWatch, check_rates
from .budget import Clock, TimeBudget, check_overhead, parse_every
from .eval_mode import eval_mode, fixed_samples
from .rows import Row, Writer, open_sinks

OVERHEAD = ArgumentCheck(or_none(is_number), "a share of the time, such as 0.1, or None")
FAILED = "failed"
TRIAL_PART = 8  # the trial uses one in this many samples
_SET_HERE = {"model", "data", "measures", "progress"}  # arguments of `measure` that are set here


class MonitorArguments(AllShared, total=False):
    """Keywords of FlatnessMonitor, and of the callbacks that make one; the optimizer is theirs."""

    measures: str | Sequence[str]
    every: int | str
    max_overhead: float | None
    to: Any
    num_samples: int | None
    strict: bool
    rates: str | Sequence[str]
    warn_above: float | None
    clock: Clock


class FlatnessMonitor:
    """Measures a network while it trains; training is the same to the last bit without it.

        monitor = sl.FlatnessMonitor(model, probe, measures=["relative.kappa"], to="run.jsonl")
        for epoch in range(10):
            for x, y in loader:
                ...; optimizer.step(); monitor.step()
            monitor.epoch_end()

    A row is {"step", "epoch", "seconds", one value per measure, "status"}. A value that is not
    exact also has "NAME.stderr", "NAME.residual" or "NAME.status". A measurement that fails (a loss
    that is NaN, for example) gives a row with status "failed", its text, and NaN as values. A value
    that is infinite gives the status "nonfinite". Where a row cannot be written (a full disk), a
    warning says so, training goes on, and the row is written with the next one.

    Args:
        model: measured in eval mode, whatever mode it is in. May be an EMA copy of the network, or
            wrapped in DistributedDataParallel.
        data: a loader or one batch. Its samples are copied once, so every row is about the same
            ones. If the training loader has persistent workers, pass a second loader.
        measures: names or patterns. The eigenvalues curvature.lambda_max and lambda_min start from
            the vector of the row before.
        every: "epoch", a number of steps, or a text such as "10 steps" or "2 epochs".
        max_overhead: the share of the training time that measuring may add, such as 0.05. A
            measurement that would exceed it is skipped. Its time is estimated from the one before,
            and at first from a trial on an eighth of the samples.
        to: "run.jsonl", "run.csv", a TensorBoard SummaryWriter, a function of a row, or a list of
            these; `rows` keeps them in memory in any case.
        num_samples: use only this many samples, the first ones.
        strict: raise when a measurement fails.
        optimizer: the one that trains the model. Rows then have its learning rate, the largest
            eigenvalue of the Hessian as its preconditioner shows it ("rate.sharpness"), the edge of
            stability ("rate.threshold", 2/η for SGD), and the critical sharpness along the last
            update. `measures` may then be empty.
        rates: "sharpness" (SGD, Adam, AdamW, NAdam, RMSprop, Adagrad), "critical" (any optimizer;
            forwards only, and a copy of the weights before a step) or both.
        warn_above: warn when the sharpness is more than this multiple of the edge; None never does.
        clock: returns seconds; for tests.
        measure_arguments: further arguments of `spiritlevel.measure`, such as loss="mse".

    Under torch.distributed every process makes a monitor and calls it at the same steps; they
    measure together, each on its own samples (the same ones in all will do), have the same rows,
    and process 0 writes them. With distributed=False process 0 measures alone, and the others
    have no rows.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Any,
        *,
        measures: str | Sequence[str] = "relative.kappa",
        every: int | str = "epoch",
        max_overhead: float | None = None,
        to: Any = None,
        num_samples: int | None = None,
        strict: bool = False,
        optimizer: torch.optim.Optimizer | None = None,
        rates: str | Sequence[str] = RATES,
        warn_above: float | None = WARN_ABOVE,
        clock: Clock = time.perf_counter,
        **measure_arguments: Any,
    ) -> None:
        given = {"measures": measures, "every": every, "max_overhead": max_overhead}
        given |= {"rates": rates, "warn_above": warn_above} | measure_arguments
        check_settings(given, watches_rate=optimizer is not None)
        check_network("FlatnessMonitor", model)
        self.model = model
        self.strict = strict
        self.rows: list[Row] = []
        self.steps, self.epoch = 0, 0
        self._every = parse_every(every)
        self._vectors: dict[str, Eigenvalues] = {}
        self._trainable: tuple[str, ...] = ()  # what the vectors are about
        with eval_mode(model):
            self.data = fixed_samples(data, num_samples)
            # an unsuitable measure is better refused now than after the first epoch
            self.measures = (
                preflight(model, self.data, measures=measures, **measure_arguments).measures
                if measures
                else ()
            )
        self.setup = Setup(**measure_arguments)
        self._rates = (
            None
            if optimizer is None
            else RateWatch(model, optimizer, rates, warn_above, self._every)
        )
        self.names = self.measures + (() if self._rates is None else self._rates.names)
        columns = _columns(self.names) + ([] if self._rates is None else ["warning"])
        self._writers = [Writer(sink) for sink in open_sinks(to, columns)]
        self._budget = TimeBudget(max_overhead, clock)

    # -- the training loop calls these -------------------------------------------------------

    def step(self, step: int | None = None) -> Row | None:
        """Call after an optimizer step; `step` is its number, if you count the steps yourself."""
        self._count_steps(self.steps + 1 if step is None else step)
        return self._maybe() if self._every.due("step", self.steps) else None

    def epoch_end(self, epoch: int | None = None) -> Row | None:
        """Call after an epoch; `epoch` is its number from 0, if you count the epochs yourself."""
        self.epoch = self.epoch if epoch is None else epoch
        row = self._maybe() if self._every.due("epoch", self.epoch + 1) else None
        self.epoch += 1
        return row

    def _count_steps(self, steps: int) -> None:
        self.steps = steps
        if self._rates is not None:
            self._rates.steps = steps

    def start(self) -> None:
        """Training starts now: the time since the monitor was made is not training time."""
        self._budget.restart()

    @property
    def overhead(self) -> float:
        """Time spent on measuring so far, as a share of the training time."""
        training = self._budget.training
        return self._budget.measuring / training if training > 0 else math.inf

    # -- measuring ---------------------------------------------------------------------------

    def measure(self) -> Row | None:
        """Measure the network now, whatever `every` and `max_overhead` say."""
        rank = Processes().rank
        if rank and not self.setup.distributed:
            return None
        row: Row = {"step": self.steps, "epoch": self.epoch, "seconds": 0.0}
        if self._rates is not None:
            self._rates.look_at_modes()
        with self._budget.spending(_device(self.model)), eval_mode(self.model):
            try:
                values = self._values(self.data)
                finite = all(math.isfinite(values[n]) for n in self.names if n in values)
                row |= values | {"status": (Status.OK if finite else Status.NONFINITE).value}
            except Exception as error:  # whatever it is, training must go on
                if self.strict:
                    raise
                row |= dict.fromkeys(self.names, math.nan)
                row |= {"status": FAILED, "text": f"{error}" or type(error).__name__}
        row["seconds"] = self._budget.expected
        if self._rates is not None:
            self._rates.forget()
            warning = None if row["status"] == FAILED else self._rates.warning(row)
            row |= {} if warning is None else {"warning": warning}
            if warning is not None and rank == 0:
                warnings.warn(warning, RuntimeWarning, stacklevel=4)
        self.rows.append(row)
        if rank == 0:
            for writer in self._writers:
                writer.write(row)
        return row

    def _maybe(self) -> Row | None:
        together = Processes(join=self.setup.distributed)
        if Processes().rank != together.rank:
            return None  # process 0 measures alone
        if self._budget.share is not None and self._budget.expected is None:
            self._try_out()
        # clocks differ between processes: all do what process 0 does
        allowed: bool = together.gather(self._budget.allows())[0]
        return self.measure() if allowed else None

    def _try_out(self) -> None:
        """Estimate how long a measurement takes, from a part of the samples."""
        if self._rates is not None:
            self._rates.look_at_modes()
        total = sum(num_samples(batch) for batch in self.data)
        count = max(1, total // TRIAL_PART)
        part = fixed_samples(self.data, count)
        failing = contextlib.suppress(Exception)  # the row that follows will show the error
        with self._budget.spending(_device(self.model)), eval_mode(self.model), failing:
            self._values(part)
        self._vectors.clear()
        if self._rates is not None:
            self._rates.forget_vectors()
        self._budget.expected = (self._budget.expected or 0.0) * total / count

    def _values(self, data: list[Any]) -> Row:
        entries: dict[str, Row] = {}
        plain = [name for name in self.measures if name not in ENDS]
        if plain:
            report = measured(self.setup, self.model, data, measures=plain)
            entries |= {name: _entries(measurement) for name, measurement in report.items()}
        trainable = tuple(n for n, p in self.model.named_parameters() if p.requires_grad)
        if trainable != self._trainable:  # layers were frozen or thawed
            self._vectors.clear()
            self._trainable = trainable
        for name in self.measures:
            if name in ENDS:
                entries[name] = self._eigenvalue(name, data)
        row = {key: value for name in self.measures for key, value in entries[name].items()}
        return row if self._rates is None else row | self._rates.values(self.setup, data)

    def _eigenvalue(self, name: str, data: list[Any]) -> Row:
        result = eigenvalues(
            self.model,
            data,
            which=ENDS[name],
            start=self._vectors.pop(name, None),
            rtol=min(VALUE_RTOL, self.setup.rtol),
            max_passes=self.setup.max_passes,
            **self.setup.keywords(OfProducts),
        )
        self._vectors[name] = result
        row: Row = {name: result.values[0], f"{name}.residual": result.errors[0]}
        return row if result.converged[0] else row | {f"{name}.status": Status.NOT_CONVERGED.value}

    # -- resuming ----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Plain types that fit into JSON. Eigenvectors are not included: they start anew."""
        state = {
            "step": self.steps,
            "epoch": self.epoch,
            "rows": [dict(row) for row in self.rows],
            "time": self._budget.state_dict(),
        }
        return state if self._rates is None else state | {"rates": self._rates.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`. Rows of later steps are removed from files."""
        self._count_steps(int(state["step"]))
        self.epoch = int(state["epoch"])
        self.rows = [dict(row) for row in state["rows"]]
        self._budget.load_state_dict(state["time"])
        if self._rates is not None and "rates" in state:
            self._rates.load_state_dict(state["rates"])
        for writer in self._writers:
            writer.resume(self.steps)


def check_settings(arguments: Mapping[str, Any], *, watches_rate: bool) -> None:
    """Refuse wrong keywords of a monitor before there is a model."""
    known = inspect.signature(FlatnessMonitor).parameters
    own = {name: p.default for name, p in known.items() if name in MonitorArguments.__annotations__}
    given = own | {name: value for name, value in arguments.items() if name in own}
    checks = {"measures": MEASURES, "max_overhead": OVERHEAD}
    check_arguments("the monitor", {name: given[name] for name in checks}, checks)
    names = given["measures"]
    patterns = [names] if isinstance(names, str) else list(names)
    if not patterns and not watches_rate:
        raise SpiritlevelError(
            "The 'measures' argument must name at least one measure. Got an empty list. See "
            "`spiritlevel list`. With an 'optimizer' it may be empty: its rate is watched then."
        )
    for pattern in patterns:
        cards(pattern)  # raises for an unknown name, with a suggestion
    parse_every(given["every"])
    check_overhead(given["max_overhead"])
    check_rates(given["rates"], given["warn_above"])
    allowed = [name for name in inspect.signature(measure).parameters if name not in _SET_HERE]
    if unknown := [name for name in arguments if name not in own and name not in allowed]:
        raise SpiritlevelError(
            f"Neither the monitor nor `measure` has an argument {unknown[0]!r}. "
            f"Arguments that are passed on to `measure`: {', '.join(allowed)}."
        )


def _entries(m: Measurement) -> Row:
    """The value, and its error and status where it is not exact."""
    row: Row = {m.name: m.value}
    if not m.exact:
        notes = {"stderr": m.stderr, "residual": m.residual}
        row |= {f"{m.name}.{key}": value for key, value in notes.items() if value is not None}
    if m.status is not Status.OK:
        row[f"{m.name}.status"] = m.status.value
    return row


def _columns(names: Sequence[str]) -> list[str]:
    """All keys that a row can have, for files that must know them in advance."""
    notes = [f"{name}.{note}" for name in names for note in ("stderr", "residual", "status")]
    return ["step", "epoch", "seconds", *names, *notes, "status", "text"]


def _device(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))
