"""The one shape of all penalties, and the base class of your own."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from ...ground.errors import SpiritlevelError
from ...model.arguments import check_network
from ...model.batches import num_samples
from ...model.distributed import refuse_sharded, unwrapped
from ...model.forwards import PretrainedForward, loss_and_forward
from ...model.losses import AnyLoss
from .argument_checks import check_batch_size, check_count, check_weight
from .forward_recorder import ForwardRecorder
from .penalty_batch import PenaltyBatch, separate_forward

STATE_KEYS = ("steps", "value", "generator")


class Penalty(abc.ABC):
    """A number times `weight`, to be added to the training loss.

        penalty = FlatnessPenalty(model, weight=0.01)
        loss = F.cross_entropy(model(x), y) + penalty(x, y)

    That sends the batch through the model a second time. To share the forward pass of the training
    loss, which is cheaper and uses the same dropout mask, run the model inside `shared_forward` and
    pass the loss:

        with penalty.shared_forward():
            loss = F.cross_entropy(model(x), y)
        loss = loss + penalty(x, y, loss=loss)

    `every=k` computes the penalty on one call in k and multiplies it by k, so that the expected
    gradient is the same; each micro-batch of an accumulated gradient is a call. With weight=0
    training does not change and `value` is measured.

    For a penalty of your own, define `compute`:

        class LogitPenalty(Penalty):
            def compute(self, batch):
                return batch.outputs.square().mean()

    Everything else works as for the others, also in Lightning (`PenaltyCallback`), the Hugging Face
    Trainer (`PenaltyTrainer`) and studies (`register_penalty`).
    """

    def __init__(
        self,
        model: nn.Module,
        weight: float = 0.01,
        *,
        every: int = 1,
        loss: AnyLoss = "cross_entropy",
        generator: torch.Generator | None = None,
    ) -> None:
        """Without a `generator` the penalty has its own, seeded with torch's initial seed.

        So torch.manual_seed also determines the penalty's random numbers, while torch's own random
        numbers are the same as in training without it. `loss` is the training loss, as for
        `measure`.
        """
        check_network(type(self).__name__, model)
        refuse_sharded(model)
        self.model = unwrapped(model)
        self.weight = check_weight(weight)
        self.loss, forward = loss_and_forward(self.model, loss, None)
        self.generator = generator or torch.Generator().manual_seed(torch.initial_seed())
        self._schedule = StepSchedule(every)
        self._label_reader = forward if isinstance(forward, PretrainedForward) else None
        self._model_recorder = ForwardRecorder(self.model)
        self._value: Tensor | None = None

    @abc.abstractmethod
    def compute(self, batch: PenaltyBatch) -> Tensor:
        """The number to penalize, without weight and `every`: one value with its graph.

        `batch` has `outputs`, `targets`, `loss` (the mean loss) and `size`. Take random numbers
        from `self.generator`, whose state is saved in checkpoints.
        """

    def around_forward(self) -> contextlib.AbstractContextManager[None]:
        """Entered around the forward pass of the batches that are penalized.

        Override it if the penalty needs more than the outputs, for example the input of a layer.
        """
        return contextlib.nullcontext()

    @property
    def every(self) -> int:
        """The penalty is computed on one call in this many."""
        return self._schedule.every

    @property
    def due(self) -> bool:
        """Whether the next call computes the penalty."""
        return self._schedule.factor > 0

    @property
    def value(self) -> Tensor | None:
        """The number as last computed, without weight and `every`; None before the first time."""
        return self._value

    def __call__(
        self,
        x: Any,
        y: Tensor | None = None,
        *,
        outputs: Any = None,
        loss: Tensor | None = None,
        batch_size: int | None = None,
    ) -> Tensor:
        """The penalty of a batch, to be added to its loss.

        Args:
            x: the model's input, or a dict or tuple of its inputs.
            y: the targets.
            outputs: what the model returned for this batch inside `shared_forward`. Needed only if
                you call parts of the model instead of the model itself.
            loss: the mean training loss of this batch, computed inside `shared_forward`. Without
                `outputs` and `loss` the penalty runs the model itself.
            batch_size: the number of samples, if the first dimension of x and y is not that.
        """
        call = self._model_recorder.take()
        if not self.due:
            self._schedule.advance()
            return self._zero()
        size = check_batch_size(num_samples((x, y)) if batch_size is None else batch_size)
        if outputs is None and loss is None:
            labels = y if self._label_reader is not None else None
            outputs = separate_forward(self.model, x, self.around_forward(), labels=labels)
        elif outputs is None and call is not None:
            outputs = call.output
        batch = PenaltyBatch(
            y, size, self.loss, returned=outputs, loss=loss, label_reader=self._label_reader
        )
        random_state = self.generator.get_state()
        try:
            value = self.compute(batch)
            self._check(value)
        except BaseException:
            self.generator.set_state(random_state)  # the next batch draws the same numbers
            raise
        self._value = value.detach()
        factor = self._schedule.advance() * self.weight
        return factor * value if factor else self._zero()

    def shared_forward(self) -> contextlib.AbstractContextManager[None]:
        """Run the model in this block to share its forward pass with the penalty.

        On steps that the penalty skips, nothing happens in it.
        """
        if not self.due:
            return contextlib.nullcontext()
        return _Both(self._model_recorder, self.around_forward())

    def state_dict(self) -> dict[str, Any]:
        """What a resumed training needs: the step count, the last value, the random state."""
        return {
            "steps": self._schedule.steps,
            "value": None if self._value is None else self._value.clone(),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        missing = [key for key in STATE_KEYS if key not in state]
        if missing:
            raise SpiritlevelError(
                f"The 'state' argument must be what {type(self).__name__}.state_dict() returned. "
                f"Got one without {', '.join(missing)}. Save the penalty's state along with the "
                "model's."
            )
        value = state["value"]
        self.generator.set_state(state["generator"].cpu())
        self._value = None if value is None else value.to(self._zero().device)
        self._schedule.steps = int(state["steps"])

    def _check(self, value: Any) -> None:
        if not isinstance(value, Tensor) or value.numel() != 1:
            got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise SpiritlevelError(
                f"{type(self).__name__}.compute must return one number as a tensor. Got {got}. "
                "Average over the batch."
            )
        if self.weight > 0 and not value.requires_grad:
            raise SpiritlevelError(
                f"{type(self).__name__}.compute must return a tensor with its graph. Got one that "
                "needs no gradient, so it would not change training. Compute it from batch.outputs "
                "or from the parameters, outside torch.no_grad() and without .detach()."
            )

    def _zero(self) -> Tensor:
        like = next(p for p in self.model.parameters() if p.is_floating_point())
        return torch.zeros((), dtype=like.dtype, device=like.device)


class _Both:
    """Two contexts as one; a class, since a generator would take several times as long to enter."""

    def __init__(
        self,
        outer: contextlib.AbstractContextManager[None],
        inner: contextlib.AbstractContextManager[None],
    ) -> None:
        self._outer, self._inner = outer, inner

    def __enter__(self) -> None:
        self._outer.__enter__()
        try:
            self._inner.__enter__()
        except BaseException as error:
            self._outer.__exit__(type(error), error, error.__traceback__)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._inner.__exit__(kind, error, trace)
        finally:
            self._outer.__exit__(kind, error, trace)


class StepSchedule:
    """Applies a penalty on one step in k, with the same expected gradient.

    Steps 0, k, 2k, … are due, and count k times as much.

    >>> schedule = StepSchedule(3)
    >>> [schedule.advance() for _ in range(6)]
    [3, 0, 0, 3, 0, 0]
    """

    def __init__(self, every: int) -> None:
        """A penalty with `every=1` is due at each step."""
        self.every = check_count("every", every, "every=8 applies the penalty on one step in 8.")
        self.steps = 0

    @property
    def factor(self) -> int:
        """What the penalty of the next step is multiplied by; 0 if that step is skipped."""
        return self.every if self.steps % self.every == 0 else 0

    def advance(self) -> int:
        """Count a step and return its factor."""
        factor = self.factor
        self.steps += 1
        return factor
