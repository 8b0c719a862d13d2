"""A callback for the Trainer of Hugging Face transformers, and Trainers for SAM and penalties.

    trainer = Trainer(model, args, train_dataset=..., eval_dataset=...)
    trainer.add_callback(FlatnessTrainerCallback(
        trainer, probe_loader, stopping=FlatnessStopping(rule="both")))

A value is logged as "flatness/NAME" by `trainer.log`, so it reaches `report_to` and
`state.log_history`. Checkpoints keep the state of monitor and stopping in trainer_state.json.

The Trainer calls `optimizer.step()` without a closure, so SAM cannot make its second pass there and
raises an error. `SAMTrainer` makes both passes; `PenaltyTrainer` adds a penalty, logs it and keeps
its state in the checkpoints:

    SAMTrainer(model, args, ..., optimizers=(SAM(AdamW(model.parameters()), rho=0.05), None))
    PenaltyTrainer(model, args, ..., penalty=FlatnessPenalty(model, weight=0.01))
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...ground.errors import SpiritlevelError, require
from ...ground.files.reading import load_torch_file
from ...ground.need import need
from ...model.batches import num_samples
from .. import FlatnessMonitor, FlatnessStopping
from ..monitor.monitor import MonitorArguments, check_settings
from ..monitor.rows import Row, scalars
from ..penalties.penalty import Penalty
from ..sam.perturbed_optimizer import AbstractPerturbedOptimizer

if TYPE_CHECKING:
    from typing_extensions import Unpack

require("transformers", what="The Trainer callback", extra="transformers")
require("accelerate", what="The Trainer callback", extra="transformers")

from transformers import Trainer, TrainerCallback  # noqa: E402

# Keys in trainer_state.json. Not names of classes, of which the Trainer would make new objects with
# restore_callback_states_from_checkpoint=True.
STATE = "spiritlevel.flatness"
PENALTY_STATE = "spiritlevel.penalty"
TENSOR = "tensor"  # where an encoded state holds a tensor
PENALTY = "penalty"  # its name in the logs


class FlatnessTrainerCallback(TrainerCallback):
    """A FlatnessMonitor, and optionally a FlatnessStopping, of the model that is trained.

    With every="epoch" it measures at the end of an epoch, before the evaluation that follows. A
    rule without a loss decides then; one with a loss decides at the evaluation. Each evaluation
    counts as an epoch for `patience`, also with eval_strategy="steps".

    Args:
        trainer: the one it is added to; its `log` takes the values.
        data: what FlatnessMonitor takes: a loader of dicts with labels, or one such dict.
        stopping: decides by the measure `flatness` and by the metric `eval_loss`.
        optimizer: watch the learning rate of the trainer's optimizer, as FlatnessMonitor does.
        monitor_arguments: measures, every, max_overhead, to, num_samples, strict, rates,
            warn_above and the arguments of `measure`, as in FlatnessMonitor.
    """

    def __init__(
        self,
        trainer: Trainer,
        data: Any,
        *,
        stopping: FlatnessStopping | None = None,
        flatness: str = "relative.kappa",
        eval_loss: str = "eval_loss",
        optimizer: bool = False,
        **monitor_arguments: Unpack[MonitorArguments],
    ) -> None:
        check_settings(monitor_arguments, watches_rate=optimizer)
        if stopping is not None and stopping.restore_best:
            raise SpiritlevelError(
                "The 'stopping' argument must not have restore_best=True here. The Trainer keeps "
                "the best weights itself: set load_best_model_at_end=True, save_strategy='epoch' "
                "and metric_for_best_model='eval_loss'."
            )
        self.trainer, self.data = trainer, data
        self.stopping, self.flatness, self.eval_loss = stopping, flatness, eval_loss
        self.monitor_arguments = monitor_arguments
        self.optimizer = optimizer
        self.monitor: FlatnessMonitor | None = None  # from the start of training on
        self._judged = 0  # rows that the stopping rule has seen
        self._training = False

    @property
    def rows(self) -> list[Row]:
        """The rows measured so far."""
        return [] if self.monitor is None else self.monitor.rows

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Make the monitor, and continue from the state in a checkpoint."""
        watched = kwargs["optimizer"] if self.optimizer else None
        self.monitor = FlatnessMonitor(
            kwargs["model"], self.data, optimizer=watched, **self.monitor_arguments
        )
        self._training = True
        if self.stopping is not None:
            self._check_run(args, self.stopping)
        saved = state.stateful_callbacks.get(STATE) if state.global_step else None
        if saved is not None:
            self.monitor.load_state_dict(saved["monitor"])
            self._judged = saved["judged"]
            if self.stopping is not None and saved["stopping"] is not None:
                self.stopping.load_state_dict(saved["stopping"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count the step, and measure if it is time."""
        if self.monitor is not None:
            self._note(state, control, self.monitor.step(state.global_step))

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure, and decide whether to stop if the rule needs no evaluation."""
        if self.monitor is None:
            return
        # state.epoch is 1.0 after the first epoch, and less if it was ended early
        self._note(state, control, self.monitor.epoch_end(max(0, math.ceil(state.epoch) - 1)))
        if self.stopping is not None and not self.stopping.needs_loss:
            self._decide(state, control, loss=None)

    def on_evaluate(
        self,
        args: Any,
        state: Any,
        control: Any,
        metrics: Mapping[str, float] = MappingProxyType({}),
        **kwargs: Any,
    ) -> None:
        """Decide whether to stop, with the loss of this evaluation."""
        if not self._training or self.stopping is None or not self.stopping.needs_loss:
            return
        if self.eval_loss in metrics:
            self._decide(state, control, loss=metrics[self.eval_loss])
        elif not isinstance(
            self.trainer.eval_dataset, dict
        ):  # of several data sets, one has that name
            raise SpiritlevelError(
                f"The rule {self.stopping.rule!r} needs the metric {self.eval_loss!r}. The "
                f"evaluation gave {', '.join(metrics)}. Pass the right name as eval_loss=."
            )

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ignore evaluations after training."""
        self._training = False

    def _note(self, state: Any, control: Any, row: Row | None) -> None:
        if row is not None and self.monitor is not None:
            should_log = control.should_log
            self.trainer.log(scalars(row, self.monitor.names))
            control.should_log = (
                should_log  # the Trainer resets it, but has not logged its loss yet
            )
        self._keep(state)

    def _decide(self, state: Any, control: Any, loss: float | None) -> None:
        assert self.stopping is not None
        value = None
        if self.stopping.needs_flatness:
            if len(self.rows) == self._judged:  # an old value would look like a stable one
                return
            self._judged = len(self.rows)
            value = self.rows[-1][self.flatness]
        if self.stopping.update(epoch=state.epoch, loss=loss, flatness=value):
            control.should_training_stop = True
        self._keep(state)

    def _keep(self, state: Any) -> None:
        """Put the state where the next checkpoint saves it."""
        if self.monitor is not None:
            state.stateful_callbacks[STATE] = {
                "monitor": self.monitor.state_dict(),
                "stopping": None if self.stopping is None else self.stopping.state_dict(),
                "judged": self._judged,
            }

    def _check_run(self, args: Any, stopping: FlatnessStopping) -> None:
        evaluates = str(getattr(args.eval_strategy, "value", args.eval_strategy)) != "no"
        if stopping.needs_loss and not evaluates:
            raise SpiritlevelError(
                f"The rule {stopping.rule!r} needs a validation loss, and this run has no "
                "evaluation. Pass eval_dataset and eval_strategy='epoch', or choose "
                "rule='flatness' or 'trend'."
            )
        assert self.monitor is not None
        if stopping.needs_flatness and self.flatness not in self.monitor.names:
            raise SpiritlevelError(
                f"The rule {stopping.rule!r} needs the measure {self.flatness!r}. Measured are "
                f"{', '.join(self.monitor.names)}. Add it to 'measures', or pass flatness=."
            )


class SAMTrainer(Trainer):
    """A Trainer that makes both passes of SAM or ASAM, or all draws of NoiseSAM, in each step."""

    def training_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """All passes of one step; returns the loss of the first."""
        optimizer: Any = self.optimizer
        while not isinstance(optimizer, AbstractPerturbedOptimizer):
            if not hasattr(optimizer, "optimizer"):  # accelerate's wrapper has
                raise SpiritlevelError(
                    "SAMTrainer needs SAM, ASAM or NoiseSAM as its optimizer. Got "
                    f"{type(optimizer).__name__}. Pass optimizers=(SAM(AdamW(model.parameters()), "
                    "rho=0.05), None)."
                )
            optimizer = optimizer.optimizer
        _refuse_accumulation(self, "SAMTrainer")
        losses = []
        for _ in optimizer.passes():
            optimizer.zero_grad()
            losses.append(super().training_step(model, dict(inputs), num_items_in_batch))
        return losses[0]


class PenaltyTrainer(Trainer):
    """A Trainer that adds a Penalty to the training loss; evaluation does not change.

    The training loss that the Trainer logs includes the penalty. Next to it, the penalty's last
    value, without the weight, is logged as "penalty". A run that is resumed from a checkpoint
    continues with the penalty's step count and random state.
    """

    def __init__(self, *args: Any, penalty: Penalty, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        then = "Pass for example FlatnessPenalty(model, weight=0.01)."
        is_penalty = isinstance(penalty, Penalty)
        need("penalty", penalty, lambda _: is_penalty, "a Penalty", then, of="PenaltyTrainer")
        self.penalty = penalty
        self.add_callback(_PenaltyState(penalty))

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The batch goes through the model once for both the loss and the penalty."""
        if not model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        _refuse_accumulation(self, "PenaltyTrainer")
        with self.penalty.shared_forward():
            loss, outputs = super().compute_loss(model, dict(inputs), True, num_items_in_batch)
        labels = next((inputs[key] for key in self.label_names if key in inputs), None)
        size = num_samples(inputs)
        loss = loss + self.penalty(inputs, labels, outputs=outputs, loss=loss, batch_size=size)
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """The penalty's value is logged next to the training loss."""
        if "loss" in logs and self.penalty.value is not None:
            logs[PENALTY] = float(self.penalty.value)
        super().log(logs, *args, **kwargs)


class _PenaltyState(TrainerCallback):
    """Keeps a penalty's state in trainer_state.json, which holds no tensors."""

    def __init__(self, penalty: Penalty) -> None:
        self.penalty = penalty

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        saved = state.stateful_callbacks.get(PENALTY_STATE) if state.global_step else None
        if saved is not None:
            self.penalty.load_state_dict({key: _decoded(value) for key, value in saved.items()})

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        state.stateful_callbacks[PENALTY_STATE] = {
            key: _encoded(value) for key, value in self.penalty.state_dict().items()
        }


def _encoded(value: Any) -> Any:
    """A tensor as text, with its dtype and shape; everything else as it is."""
    if not isinstance(value, Tensor):
        return value
    raw = value.detach().cpu().contiguous().flatten().view(torch.uint8)
    return {
        TENSOR: base64.b64encode(raw.numpy().tobytes()).decode("ascii"),
        "dtype": str(value.dtype).removeprefix("torch."),
        "shape": list(value.shape),
    }


def _decoded(value: Any) -> Any:
    if not isinstance(value, Mapping) or TENSOR not in value:
        return value
    data = base64.b64decode(value[TENSOR])
    if "dtype" not in value:  # as earlier versions wrote it
        return load_torch_file(io.BytesIO(data), what="trainer_state.json")
    dtype = getattr(torch, str(value["dtype"]), None)
    if not isinstance(dtype, torch.dtype):
        raise SpiritlevelError(
            f"The penalty's state in trainer_state.json must name a dtype of torch. Got "
            f"{value['dtype']!r}. Resume from another checkpoint."
        )
    raw = torch.tensor(list(data), dtype=torch.uint8)
    return raw.view(dtype).reshape(value["shape"])


def _refuse_accumulation(trainer: Trainer, name: str) -> None:
    if trainer.args.gradient_accumulation_steps > 1:
        raise SpiritlevelError(
            f"{name} needs gradient_accumulation_steps=1, because it must see the loss of a whole "
            f"step. Got {trainer.args.gradient_accumulation_steps}. Use larger batches, or write "
            "the loop yourself: see spiritlevel.training.sam.optimizers."
        )
