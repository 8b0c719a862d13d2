"""The penalty of paper 004, Tr(H²)/B."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...model.losses import AnyLoss
from ...model.parameters import select_parameters
from .argument_checks import check_probes
from .penalty import Penalty
from .penalty_batch import PenaltyBatch
from .third_derivatives.operations import thrice_differentiable
from .trace_squared import trace_squared_of


class FlatnessPenalty(Penalty):
    """weight · Tr(H²)/B with the Hessian H of the batch's mean loss and the batch size B.

    Called like every `Penalty`. It works for any loss and any layers; `layers` (module paths or
    patterns) restricts H to their parameters, and `probes` is the number of random directions of
    the estimate.
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
        """`every`, `loss` and `generator` as in Penalty."""
        super().__init__(model, weight, every=every, loss=loss, generator=generator)
        self.probes = check_probes(probes)
        self.layers = layers
        select_parameters(self.model, layers)  # refuses now what would fail at the first step

    def compute(self, batch: PenaltyBatch) -> Tensor:
        """An unbiased estimate of Tr(H²)/B."""
        return trace_squared_of(
            batch.loss,
            select_parameters(self.model, self.layers).values(),
            batch.size,
            probes=self.probes,
            generator=self.generator,
            create_graph=self.weight > 0,
        )

    def around_forward(self) -> contextlib.AbstractContextManager[None]:
        """The training step differentiates the loss a third time."""
        return thrice_differentiable()
