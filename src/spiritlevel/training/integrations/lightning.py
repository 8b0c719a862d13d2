"""Callbacks for Lightning.

    trainer = Trainer(callbacks=[
        FlatnessMonitorCallback(probe_loader, measures=["relative.kappa"]),
        FlatnessStoppingCallback(rule="both", monitor="val_loss"),
        PenaltyCallback(FlatnessPenalty(module, weight=0.01, every=8)),
    ])

A value is logged as "flatness/NAME", for loggers and other callbacks. A ModelCheckpoint that keeps
its smallest value keeps an early epoch, before anything is learned: monitor the validation loss.

SAM and its variants are optimizers that `configure_optimizers` returns; Lightning passes them the
closure they need: `return SAM(torch.optim.SGD(self.parameters(), lr=0.1), rho=0.05)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ...ground.errors import SpiritlevelError, require
from .. import FlatnessMonitor, FlatnessStopping
from ..monitor.monitor import MonitorArguments, check_settings
from ..monitor.rows import PREFIX, Row, scalars
from ..stopping import Rule

if TYPE_CHECKING:
    from typing_extensions import Unpack

require("lightning.pytorch", what="The Lightning callback", extra="lightning")

from lightning.pytorch import Callback, LightningModule, Trainer  # noqa: E402
from lightning.pytorch.utilities import rank_zero_info  # noqa: E402

from .lightning_penalty import PenaltyCallback  # noqa: E402

__all__ = ["FlatnessMonitorCallback", "FlatnessStoppingCallback", "PenaltyCallback"]


class FlatnessMonitorCallback(Callback):
    """A FlatnessMonitor of the module that is trained.

    With every="epoch" it measures after the last batch of an epoch and before validation, so that
    the value is available at the end of validation. A callback that monitors it must come later in
    the list; ModelCheckpoint always does.

    Args:
        data: what FlatnessMonitor takes, or a function of the trainer that returns it, for data
            that only a data module has: lambda trainer: trainer.datamodule.probe_dataloader().
        module: the path of the network inside the LightningModule; None takes all of it, calling
            its `forward`.
        prog_bar: also show the values in the progress bar.
        optimizer: watch the learning rate of the trainer's optimizer, as FlatnessMonitor does.
        monitor_arguments: measures, every, max_overhead, to, num_samples, strict, rates,
            warn_above and the arguments of `measure`, as in FlatnessMonitor.
    """

    def __init__(
        self,
        data: Any | Callable[[Trainer], Any],
        *,
        module: str | None = None,
        prog_bar: bool = False,
        optimizer: bool = False,
        **monitor_arguments: Unpack[MonitorArguments],
    ) -> None:
        super().__init__()
        check_settings(monitor_arguments, watches_rate=optimizer)
        self.data, self.module, self.prog_bar = data, module, prog_bar
        self.monitor_arguments = monitor_arguments
        self.optimizer = optimizer
        self.monitor: FlatnessMonitor | None = None  # from the start of training on
        self._state: dict[str, Any] | None = None  # of a checkpoint, until there is a monitor
        self._step = 0
        self._measured_epoch = -1

    @property
    def rows(self) -> list[Row]:
        """The rows measured so far."""
        return [] if self.monitor is None else self.monitor.rows

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the measures, from the start of training on."""
        return () if self.monitor is None else self.monitor.names

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make the monitor: the module is on its device now, and the data is available."""
        model = pl_module if self.module is None else pl_module.get_submodule(self.module)
        data = self.data(trainer) if callable(self.data) else self.data
        watched = _only_optimizer(trainer) if self.optimizer else None
        self.monitor = FlatnessMonitor(model, data, optimizer=watched, **self.monitor_arguments)
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
        """Measure at the end of an epoch without a last batch, ended by max_steps for example."""
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
        # without `log_every_n_steps`, which would drop most rows; steps as Lightning counts them
        for logger in trainer.loggers:
            logger.log_metrics(
                values | {"epoch": trainer.current_epoch}, step=max(trainer.global_step - 1, 0)
            )

    def state_dict(self) -> dict[str, Any]:
        """The state that Lightning saves in its checkpoints."""
        return (self._state or {}) if self.monitor is None else self.monitor.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state of a checkpoint until the monitor is made."""
        self._state = state_dict or None


def _only_optimizer(trainer: Trainer) -> torch.optim.Optimizer:
    if len(trainer.optimizers) != 1:
        raise SpiritlevelError(
            "FlatnessMonitorCallback(optimizer=True) needs a module with one optimizer. "
            f"configure_optimizers returned {len(trainer.optimizers)}. Make a FlatnessMonitor "
            "yourself, with the network and the optimizer that belong together."
        )
    return trainer.optimizers[0]


class FlatnessStoppingCallback(Callback):
    """A FlatnessStopping at the end of every training epoch.

    An epoch without a new flatness value (because of `every` or `max_overhead`), or without
    validation if the rule needs it, is skipped: `patience` counts the others.

    Args:
        flatness: the logged name of the flatness, from FlatnessMonitorCallback (which must stand
            before this one in the list) or from `self.log` of the module.
        monitor: the logged name of the validation loss.
        verbose: log why training stops.
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
        """Refuse a rule that can never be met before the first batch."""
        if self.stopping.needs_loss and not trainer.enable_validation:
            raise SpiritlevelError(
                f"The rule {self.stopping.rule!r} needs the validation loss {self.monitor!r}, and "
                "this run has no validation. Pass val_dataloaders and define validation_step, or "
                "choose rule='flatness' or 'trend' without restore_best."
            )

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note that there is a new validation loss; the sanity check does not count."""
        self._validated = not trainer.sanity_checking

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Decide whether to stop, the same in all processes."""
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
        """Restore the best weights, if they were kept."""
        if self.stopping.restore_best and self.stopping.best_epoch is not None:
            self.stopping.restore(pl_module)

    def _flatness_now(self, trainer: Trainer) -> float | None:
        """The flatness of this epoch; None if there is none, since an old one would look stable."""
        name = self.flatness.removeprefix(PREFIX)
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        for callback in callbacks:
            if isinstance(callback, FlatnessMonitorCallback) and name in callback.names:
                rows = callback.rows
                fresh = bool(rows) and rows[-1]["epoch"] == trainer.current_epoch
                return float(rows[-1][name]) if fresh else None
        return self._metric(trainer, self.flatness)

    def _metric(self, trainer: Trainer, name: str) -> float:
        logged = trainer.callback_metrics
        if name in logged:
            return float(logged[name])
        names = ", ".join(map(str, logged)) or "nothing"
        raise SpiritlevelError(
            f"FlatnessStoppingCallback needs {name!r} among the logged metrics. Logged are: "
            f"{names}. Put a FlatnessMonitorCallback before it, or call self.log({name!r}, ...)."
        )

    def state_dict(self) -> dict[str, Any]:
        """The state that Lightning saves in its checkpoints."""
        return self.stopping.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the state in a checkpoint."""
        self.stopping.load_state_dict(state_dict)
