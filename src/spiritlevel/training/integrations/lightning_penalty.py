"""Any penalty for a Lightning module that knows nothing of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from ...ground.errors import SpiritlevelError, brief
from ...model.batches import TARGET_KEYS, num_samples
from ...model.distributed import refuse_sharded
from ...model.forwards import split_targets
from ..penalties.penalty import Penalty
from ..sam.perturbed_optimizer import AbstractPerturbedOptimizer

PENALTY = "penalty"  # its name among the logged metrics
MakePenalty = Callable[[LightningModule], Penalty]


class PenaltyCallback(Callback):
    """Adds a penalty to the loss that `training_step` returns.

        module = MyModule()
        penalty = FlatnessPenalty(module, weight=0.01, every=8)
        Trainer(callbacks=[PenaltyCallback(penalty)]).fit(module)

    The batch goes through the model once, and one backward pass makes both gradients. The loss must
    be the mean over the batch. FlatnessPenalty takes the Hessian of all of that loss, including
    terms that `training_step` itself has added. What `training_step` logs does not include the
    penalty. The penalty's last value, without the weight, is logged as "penalty". Checkpoints keep
    the penalty's state. With accumulate_grad_batches each micro-batch counts as a step of `every`.

    Args:
        penalty: a Penalty whose model is the module, or the part of it that `training_step` calls;
            or a function of the module that makes one, for a module that builds its layers in
            `configure_model`.
        split: returns (x, y) of a batch that is neither such a pair nor a dict with labels.
        batch_size: the number of samples of a batch, if it is not the length of its first tensor.
        prog_bar: also show the value in the progress bar.
    """

    def __init__(
        self,
        penalty: Penalty | MakePenalty,
        *,
        split: Callable[[Any], tuple[Any, Tensor]] | None = None,
        batch_size: Callable[[Any], int] = num_samples,
        prog_bar: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(penalty, Penalty) and (
            not callable(penalty) or isinstance(penalty, type)
        ):
            raise SpiritlevelError(
                "The 'penalty' argument of PenaltyCallback must be a Penalty, or a function of the "
                f"LightningModule that returns one. Got {brief(penalty)}. Pass for example "
                "FlatnessPenalty(module, weight=0.01)."
            )
        self.penalty: Penalty | None = penalty if isinstance(penalty, Penalty) else None
        self._make = None if isinstance(penalty, Penalty) else penalty
        self._split = _split_batch if split is None else split
        self.batch_size, self.prog_bar = batch_size, prog_bar
        self._state: dict[str, Any] | None = None  # of a checkpoint, until there is a penalty
        self._forward = contextlib.ExitStack()  # open from the start of a batch to its backward
        self._batch: Any = None  # from its start to its backward

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check the run, and make the penalty if it is not there yet."""
        _check_run(trainer, pl_module)
        if self._make is not None:
            made: object = self._make(pl_module)
            if not isinstance(made, Penalty):
                raise SpiritlevelError(
                    "The function given to PenaltyCallback must return a Penalty. Got "
                    f"{type(made).__name__}. Return for example FlatnessPenalty(module, "
                    "weight=0.01)."
                )
            self.penalty = made
            if self._state is not None:
                self.penalty.load_state_dict(self._state)
                self._state = None
        assert self.penalty is not None
        _check_model(self.penalty, pl_module)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """From here on the loss is computed in a form that the penalty can use."""
        self._forward.close()
        if self.penalty is not None:
            self._batch = batch
            self._forward.enter_context(self.penalty.shared_forward())

    def on_before_backward(
        self, trainer: Trainer, pl_module: LightningModule, loss: Tensor
    ) -> None:
        """Add the penalty to the loss whose backward pass comes next."""
        self._forward.close()
        if self.penalty is None:
            return
        batch, self._batch = self._batch, None
        if batch is None:
            raise SpiritlevelError(
                "PenaltyCallback needs one backward pass per batch. Got a second one for the same "
                f"batch, by the optimizer or by training_step. {_BY_HAND}"
            )
        x, y = self._split(batch)
        size = self.batch_size(batch)
        parts = trainer.accumulate_grad_batches  # Lightning has divided the loss by it
        term = self.penalty(x, y, loss=loss * parts, batch_size=size)
        # In place, since Lightning keeps the tensor. It is the quotient that Lightning made: nobody
        # else looks at it, and its own backward does not need its value.
        loss.add_(term / parts)
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
        """Close the forward pass of a `training_step` that returned None, so had no backward."""
        self._forward.close()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close the forward pass of a batch at which the epoch was ended early."""
        self._forward.close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Leave torch as it was for whoever catches the exception."""
        self._forward.close()

    def state_dict(self) -> dict[str, Any]:
        """The state that Lightning saves in its checkpoints."""
        return (self._state or {}) if self.penalty is None else self.penalty.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the state in a checkpoint; a penalty that is made later loads it then."""
        if self.penalty is not None and state_dict:
            self.penalty.load_state_dict(state_dict)
        else:
            self._state = state_dict or None


def _split_batch(batch: Any) -> tuple[Any, Tensor | None]:
    """(x, y) of a pair or of a dict with labels; other batches have no targets that are known."""
    if isinstance(batch, Mapping) and any(key in batch for key in TARGET_KEYS):
        return split_targets(batch)
    if isinstance(batch, list | tuple) and len(batch) == 2 and isinstance(batch[1], Tensor):
        return batch[0], batch[1]
    return batch, None


_BY_HAND = (
    "Use the penalty in training_step instead: compute the loss inside `with "
    "penalty.shared_forward():` and return loss + penalty(x, y, loss=loss)."
)


def _check_model(penalty: Penalty, pl_module: LightningModule) -> None:
    """Refuse a penalty of another network, and one that is sharded since the penalty was made."""
    refuse_sharded(pl_module)
    trained = {id(parameter) for parameter in pl_module.parameters()}
    if not all(id(parameter) in trained for parameter in penalty.model.parameters()):
        raise SpiritlevelError(
            "The model of the penalty must be the module that is trained, or a part of it. Got a "
            f"{type(penalty.model).__name__} that {type(pl_module).__name__} does not contain. "
            "Make the penalty from the module that you pass to fit."
        )


def _check_run(trainer: Trainer, pl_module: LightningModule) -> None:
    """Refuse, before the first batch, runs in which the penalty would be wrong."""
    if not pl_module.automatic_optimization:
        raise SpiritlevelError(
            "PenaltyCallback needs automatic optimization. Got a module with "
            f"automatic_optimization=False, which calls backward itself. {_BY_HAND}"
        )
    if trainer.scaler is not None:
        raise SpiritlevelError(
            "PenaltyCallback needs a loss that is not scaled. Got "
            f"precision={trainer.precision!r}, which multiplies it for float16. Choose "
            "precision='bf16-mixed' or '32-true'."
        )
    for optimizer in trainer.optimizers:
        if isinstance(optimizer, AbstractPerturbedOptimizer | torch.optim.LBFGS):
            raise SpiritlevelError(
                "PenaltyCallback needs an optimizer that takes one backward pass per step. Got "
                f"{type(optimizer).__name__}. {_BY_HAND}"
            )
