"""A flatness penalty for a module of Lightning that knows nothing of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from ...errors import SpiritlevelError
from ...model.batches import num_samples
from .. import FlatnessPenalty
from ..penalties.arguments import check_probes, check_weight
from ..penalties.lazy import LazySchedule
from ..sam.perturbed_optimizer import AbstractPerturbedOptimizer

PENALTY = "flatness_penalty"  # its name among the logged metrics


class FlatnessPenaltyCallback(Callback):
    """Adds weight · Tr(H²)/B to the loss that `training_step` returns.

        Trainer(callbacks=[FlatnessPenaltyCallback(weight=0.01, every=8)])

    The batch goes through the model once, and one backward makes both gradients. That loss must be
    the mean over the batch; H is the Hessian of all of it, with the terms that `training_step`
    itself may have added. What `training_step` logs is without the penalty. Tr(H²)/B as last
    measured, without the weight, is logged as "flatness_penalty". Checkpoints keep the count of
    `every` and the random directions. With accumulate_grad_batches each micro-batch counts.

    Args:
        module: the path of the network inside the LightningModule; None takes all of it.
        batch_size: how many samples a batch holds, where the length of its first tensor does not
            say so.
        prog_bar: also show the value in the progress bar.
        weight, probes, every, layers, generator: as in FlatnessPenalty.
    """

    def __init__(
        self,
        weight: float = 0.01,
        *,
        probes: int = 1,
        every: int = 1,
        layers: str | Sequence[str] | None = None,
        generator: torch.Generator | None = None,
        module: str | None = None,
        batch_size: Callable[[Any], int] = num_samples,
        prog_bar: bool = False,
    ) -> None:
        super().__init__()
        self.weight = check_weight(weight)
        self.module, self.batch_size, self.prog_bar = module, batch_size, prog_bar
        self.options: dict[str, Any] = {
            "probes": check_probes(probes),
            "every": LazySchedule(every).every,
            "layers": layers,
            "generator": generator,
        }
        self.penalty: FlatnessPenalty | None = None  # from the start of training on
        self._state: dict[str, Any] | None = None  # of a checkpoint, until there is a penalty
        self._forward = contextlib.ExitStack()  # open from the start of a batch to its backward
        self._batch_size: int | None = None  # until the backward of the batch

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make the penalty: the module is on its device now."""
        _check_run(trainer, pl_module)
        model = pl_module if self.module is None else pl_module.get_submodule(self.module)
        self.penalty = FlatnessPenalty(model, self.weight, **self.options)
        if self._state is not None:
            self.penalty.load_state_dict(self._state)
            self._state = None

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """From here on the loss is computed in a form that the penalty can differentiate."""
        self._forward.close()
        if self.penalty is not None:
            self._batch_size = self.batch_size(batch)
            self._forward.enter_context(self.penalty.shared_forward())

    def on_before_backward(
        self, trainer: Trainer, pl_module: LightningModule, loss: Tensor
    ) -> None:
        """Add the penalty to the loss whose backward comes next."""
        self._forward.close()
        if self.penalty is None:
            return
        size, self._batch_size = self._batch_size, None
        if size is None:
            raise SpiritlevelError(
                "FlatnessPenaltyCallback needs one backward a batch. Got a second one for the same "
                f"batch, by the optimizer or by training_step. {_BY_HAND}"
            )
        parts = trainer.accumulate_grad_batches  # Lightning has divided the loss by it
        # In place, since Lightning keeps the tensor. It is the quotient that Lightning made: nobody
        # else looks at it, and its own backward does not need its value.
        loss.add_(self.penalty.of(loss * parts, size) / parts)
        if self.penalty.value is not None:
            pl_module.log(
                PENALTY,
                self.penalty.value,
                prog_bar=self.prog_bar,
                on_step=True,
                on_epoch=False,
                batch_size=size,
            )

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """A `training_step` that returns None has no backward."""
        self._forward.close()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A batch at which the epoch was given up has no end."""
        self._forward.close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Whoever catches it finds torch as it was."""
        self._forward.close()

    def state_dict(self) -> dict[str, Any]:
        """Goes into Lightning's checkpoints."""
        return (self._state or {}) if self.penalty is None else self.penalty.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From a checkpoint; the penalty is made later."""
        self._state = state_dict or None


_BY_HAND = (
    "Take a FlatnessPenalty in training_step instead: compute the loss inside `with "
    "penalty.shared_forward():` and return loss + penalty.of(loss, len(x))."
)


def _check_run(trainer: Trainer, pl_module: LightningModule) -> None:
    """Refuse, before the first batch, what the penalty would get wrong."""
    if not pl_module.automatic_optimization:
        raise SpiritlevelError(
            "FlatnessPenaltyCallback needs automatic optimization. Got a module with "
            f"automatic_optimization=False, which makes its own backward. {_BY_HAND}"
        )
    if trainer.scaler is not None:
        raise SpiritlevelError(
            "FlatnessPenaltyCallback needs a loss that is not scaled. Got "
            f"precision={trainer.precision!r}, which multiplies it for float16. Choose "
            "precision='bf16-mixed' or '32-true'."
        )
    for optimizer in trainer.optimizers:
        if isinstance(optimizer, AbstractPerturbedOptimizer | torch.optim.LBFGS):
            raise SpiritlevelError(
                "FlatnessPenaltyCallback needs an optimizer that takes one backward a step. Got "
                f"{type(optimizer).__name__}. {_BY_HAND}"
            )
