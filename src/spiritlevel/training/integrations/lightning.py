"""Callbacks for Lightning.

    trainer = Trainer(callbacks=[
        FlatnessMonitorCallback(probe_loader, measures=["relative.kappa"]),
        FlatnessStoppingCallback(rule="both", monitor="val_loss"),
        PenaltyCallback(FlatnessPenalty(module, weight=0.01, every=8)),
    ])

A value is logged as "flatness/NAME": ModelCheckpoint and EarlyStopping take it as `monitor=`.

SAM and its variants are optimizers that `configure_optimizers` returns; Lightning passes them the
closure they need: `return SAM(torch.optim.SGD(self.parameters(), lr=0.1), rho=0.05)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...errors import SpiritlevelError, require
from .. import FlatnessMonitor, FlatnessStopping
from ..monitor.monitor import check_settings
from ..monitor.rows import PREFIX, Row, scalars
from ..stopping import Rule

require("lightning.pytorch", what="The Lightning callback", extra="lightning")

from lightning.pytorch import Callback, LightningModule, Trainer  # noqa: E402
from lightning.pytorch.utilities import rank_zero_info  # noqa: E402

from .lightning_penalty import PenaltyCallback  # noqa: E402

__all__ = ["FlatnessMonitorCallback", "FlatnessStoppingCallback", "PenaltyCallback"]


class FlatnessMonitorCallback(Callback):
    """A FlatnessMonitor of the module that is trained.

    With every="epoch" it measures after the last batch of an epoch, before validation begins, so
    that the value is there for whoever looks at the end of validation. A callback that monitors
    it must come later in the list; ModelCheckpoint always does.

    Args:
        data: what FlatnessMonitor takes, or a function of the trainer that returns it, for data
            that only a data module has: lambda trainer: trainer.datamodule.probe_dataloader().
        module: the path of the network inside the LightningModule; None takes all of it, calling
            its `forward`.
        prog_bar: also show the values in the progress bar.
        to, num_samples, strict, measure_options: as in FlatnessMonitor.
    """

    def __init__(
        self,
        data: Any | Callable[[Trainer], Any],
        *,
        measures: str | Sequence[str] = "relative.kappa",
        every: int | str = "epoch",
        max_overhead: float | None = None,
        module: str | None = None,
        prog_bar: bool = False,
        to: Any = None,
        num_samples: int | None = None,
        strict: bool = False,
        **measure_options: Any,
    ) -> None:
        super().__init__()
        check_settings(measures, every, max_overhead, measure_options)
        self.data, self.module, self.prog_bar = data, module, prog_bar
        self.options = measure_options | {
            "measures": measures,
            "every": every,
            "max_overhead": max_overhead,
            "to": to,
            "num_samples": num_samples,
            "strict": strict,
        }
        self.monitor: FlatnessMonitor | None = None  # from the start of training on
        self._state: dict[str, Any] | None = None  # of a checkpoint, until there is a monitor
        self._step = 0
        self._measured_epoch = -1

    @property
    def rows(self) -> list[Row]:
        """What was measured so far."""
        return [] if self.monitor is None else self.monitor.rows

    @property
    def names(self) -> tuple[str, ...]:
        """What is measured, from the start of training on."""
        return () if self.monitor is None else self.monitor.names

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make the monitor: the module is on its device now, and the data is there."""
        model = pl_module if self.module is None else pl_module.get_submodule(self.module)
        data = self.data(trainer) if callable(self.data) else self.data
        self.monitor = FlatnessMonitor(model, data, **self.options)
        if self._state is not None:
            self.monitor.load_state_dict(self._state)
        self._step = trainer.global_step
        self._measured_epoch = self.monitor.epoch - 1

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """Count the step, unless gradients are still being summed."""
        if self.monitor is None:
            return
        if trainer.global_step != self._step:
            self._step = trainer.global_step
            self._log(trainer, pl_module, self.monitor.step(self._step))
        if trainer.is_last_batch:
            self._end_epoch(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """An epoch that was broken off, by max_steps for example, has no last batch."""
        self._end_epoch(trainer, pl_module)

    def _end_epoch(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.monitor is not None and self._measured_epoch < trainer.current_epoch:
            self._measured_epoch = trainer.current_epoch
            self._log(trainer, pl_module, self.monitor.epoch_end(trainer.current_epoch))

    def _log(self, trainer: Trainer, pl_module: LightningModule, row: Row | None) -> None:
        values = {} if row is None else scalars(row, self.names)
        if not values:
            return
        for name, value in values.items():
            pl_module.log(
                name, torch.tensor(value), prog_bar=self.prog_bar, logger=False, batch_size=1
            )
        # past `log_every_n_steps`, which would drop most rows; numbered as Lightning numbers steps
        for logger in trainer.loggers:
            logger.log_metrics(
                values | {"epoch": trainer.current_epoch}, step=max(trainer.global_step - 1, 0)
            )

    def state_dict(self) -> dict[str, Any]:
        """Goes into Lightning's checkpoints."""
        return (self._state or {}) if self.monitor is None else self.monitor.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From a checkpoint; the monitor is made later."""
        self._state = state_dict or None


class FlatnessStoppingCallback(Callback):
    """A FlatnessStopping at the end of every training epoch.

    An epoch without a new flatness (`every`, `max_overhead`), or without validation where the rule
    needs one, is left out: `patience` counts the others.

    Args:
        flatness: the logged name of the flatness, from FlatnessMonitorCallback (which must stand
            before this one in the list) or from the module's own `self.log`.
        monitor: the logged name of the validation loss.
        verbose: say in a log line why training stops.
    """

    def __init__(
        self,
        rule: Rule = "flatness",
        *,
        flatness: str = PREFIX + "relative.kappa",
        monitor: str = "val_loss",
        patience: int = 10,
        tolerance: float = 0.02,
        min_delta: float = 0.0,
        confidence: float = 0.95,
        restore_best: bool = False,
        verbose: bool = True,
    ) -> None:
        super().__init__()
        self.stopping = FlatnessStopping(
            rule,
            patience=patience,
            tolerance=tolerance,
            min_delta=min_delta,
            confidence=confidence,
            restore_best=restore_best,
        )
        self.flatness, self.monitor, self.verbose = flatness, monitor, verbose
        self._validated = False

    @property
    def reason(self) -> str:
        """Why training was stopped; empty if it was not."""
        return self.stopping.reason

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A rule that can never be met is refused before the first batch."""
        if self.stopping.needs_loss and not trainer.enable_validation:
            raise SpiritlevelError(
                f"The rule {self.stopping.rule!r} needs the validation loss {self.monitor!r}, and "
                "this run has no validation. Pass val_dataloaders and define validation_step, or "
                "choose rule='flatness' or 'trend' without restore_best."
            )

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The loss is a new one; that of the sanity check is none."""
        self._validated = not trainer.sanity_checking

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Decide, in all processes alike."""
        rule = self.stopping
        value = self._flatness_now(trainer) if rule.needs_flatness else None
        if (rule.needs_loss and not self._validated) or (rule.needs_flatness and value is None):
            return
        self._validated = False
        stop = rule.update(
            epoch=trainer.current_epoch,
            loss=self._metric(trainer, self.monitor) if rule.needs_loss else None,
            flatness=value,
            model=pl_module,
        )
        stop = trainer.strategy.reduce_boolean_decision(stop, all=False)
        trainer.should_stop = trainer.should_stop or stop
        if stop and self.verbose:
            rank_zero_info(f"Stopping after epoch {trainer.current_epoch}: {self.reason}.")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Give the module its best weights back, if they were kept."""
        if self.stopping.restore_best and self.stopping.best_epoch is not None:
            self.stopping.restore(pl_module)

    def _flatness_now(self, trainer: Trainer) -> float | None:
        """None where this epoch has none: an old value would look like one that does not change."""
        name = self.flatness.removeprefix(PREFIX)
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        for callback in callbacks:
            if isinstance(callback, FlatnessMonitorCallback) and name in callback.names:
                rows = callback.rows
                fresh = bool(rows) and rows[-1]["epoch"] == trainer.current_epoch
                return float(rows[-1][name]) if fresh else None
        return self._metric(trainer, self.flatness)

    def _metric(self, trainer: Trainer, name: str) -> float:
        known = trainer.callback_metrics
        if name in known:
            return float(known[name])
        have = ", ".join(map(str, known)) or "nothing"
        raise SpiritlevelError(
            f"FlatnessStoppingCallback looks for {name!r} among the logged metrics. Logged are: "
            f"{have}. Put a FlatnessMonitorCallback before it, or call self.log({name!r}, ...)."
        )

    def state_dict(self) -> dict[str, Any]:
        """Goes into Lightning's checkpoints."""
        return self.stopping.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From a checkpoint."""
        self.stopping.load_state_dict(state_dict)
