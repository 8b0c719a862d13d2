"""The penalty of paper 004 as an object of the training loop."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import SpiritlevelError
from ...model.batches import num_samples
from ...model.distributed import refuse_sharded, unwrapped
from ...model.losses import resolve
from ...model.parameters import select_parameters
from .arguments import check_batch_size, check_probes, check_weight
from .lazy import LazySchedule
from .third_derivatives.operations import thrice_differentiable
from .trace_squared import AnyLoss, batch_loss, trace_squared_of


class FlatnessPenalty:
    """weight · Tr(H²)/B, to be added to the training loss.

        penalty = FlatnessPenalty(model, weight=0.01)
        loss = F.cross_entropy(model(x), y) + penalty(x, y)

    The batch goes through the model twice that way. Once is cheaper, and with dropout both parts
    see one mask:

        with penalty.shared_forward():
            loss = F.cross_entropy(model(x), y)
        loss = loss + penalty.of(loss, len(x))

    `every=k` computes it at one call in k, k-fold, so that the expected gradient is the same; each
    micro-batch of an accumulated gradient is a call. With weight=0 training stays as it is and
    `value` is measured.
    """

    def __init__(
        self,
        model: nn.Module,
        weight: float = 0.01,
        *,
        probes: int = 1,
        every: int = 1,
        layers: str | Sequence[str] | None = None,
        loss: AnyLoss = "cross_entropy",
        generator: torch.Generator | None = None,
    ) -> None:
        """Without a generator it has one of its own, seeded with torch's initial seed.

        So torch.manual_seed settles the directions too, while torch's random numbers stay those of
        a training without the penalty.
        """
        refuse_sharded(model)
        self.model = unwrapped(model)
        self.weight = check_weight(weight)
        self.probes = check_probes(probes)
        self.layers = layers
        self.loss = resolve(loss)
        self.generator = generator or torch.Generator().manual_seed(torch.initial_seed())
        self._schedule = LazySchedule(every)
        self._value: Tensor | None = None
        select_parameters(self.model, layers)  # refuses what would fail at the first step

    @property
    def every(self) -> int:
        """Calls to one that is computed."""
        return self._schedule.every

    @property
    def due(self) -> bool:
        """Whether the coming call is one that is computed."""
        return self._schedule.factor > 0

    @property
    def value(self) -> Tensor | None:
        """Tr(H²)/B as last measured, without weight and `every`; None before the first time."""
        return self._value

    def __call__(self, x: Any, y: Tensor) -> Tensor:
        """The penalty of a batch, which goes through the model for it."""
        if not self.due:
            return self._left_out()
        size = check_batch_size(num_samples((x, y)))
        return self.of(batch_loss(self.model, x, y, loss=self.loss), size)

    def of(self, loss: Tensor, batch_size: int) -> Tensor:
        """The penalty of the batch whose mean loss this is."""
        if not self.due:
            return self._left_out()
        found = trace_squared_of(
            loss,
            select_parameters(self.model, self.layers).values(),
            batch_size,
            probes=self.probes,
            generator=self.generator,
            create_graph=self.weight > 0,
        )
        self._value = found.detach()
        factor = self._schedule.advance() * self.weight
        return factor * found if factor else self._zero()

    def shared_forward(self) -> contextlib.AbstractContextManager[None]:
        """Compute the loss for `of` in here; nothing happens at calls that are left out."""
        return thrice_differentiable() if self.due else contextlib.nullcontext()

    def state_dict(self) -> dict[str, Any]:
        """What a training that goes on from a checkpoint needs."""
        return {
            "steps": self._schedule.steps,
            "value": None if self._value is None else self._value.clone(),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        missing = {"steps", "value", "generator"} - set(state)
        if missing:
            raise SpiritlevelError(
                "The 'state' argument must be what FlatnessPenalty.state_dict() returned. Got one "
                f"without {', '.join(sorted(missing))}. Save the penalty's state beside the "
                "model's."
            )
        self.generator.set_state(state["generator"].cpu())
        self._schedule.steps, self._value = int(state["steps"]), state["value"]

    def _left_out(self) -> Tensor:
        self._schedule.advance()
        return self._zero()

    def _zero(self) -> Tensor:
        like = next(self.model.parameters())
        return torch.zeros((), dtype=like.dtype, device=like.device)
