"""The negative log-likelihood of outputs that already are log-probabilities."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ...math.curvature import DiagonalCurvature
from .class_targets import AbstractClassLoss
from .protocol import rounding_and_size

NORMALIZED = 1e-2  # |log Σ p| of probabilities, whatever type they are in


class NegativeLogLikelihood(AbstractClassLoss):
    """−z_y, as `torch.nn.NLLLoss` has it: linear in the outputs, so they have no curvature."""

    kind = "NLLLoss"
    takes_probabilities = False

    def __init__(self, *, class_weights: Tensor | None = None, ignore_index: int = -100) -> None:
        """The arguments of `torch.nn.NLLLoss`, with the same meaning."""
        super().__init__(class_weights=class_weights, ignore_index=ignore_index, class_dim=None)

    @property
    def name(self) -> str:
        """The name that settings and messages show."""
        return self.kind + (" (class weights)" if self.class_weights is not None else "")

    def row_values(self, rows: Tensor, row_targets: Tensor) -> Tensor:
        """The loss of each position times the weight of its target."""
        return F.nll_loss(
            rows,
            row_targets,
            weight=self._class_weights(rows),
            ignore_index=self.ignore_index,
            reduction="none",
        )

    def num_columns(self, outputs: Tensor, targets: Tensor) -> int:
        """One per output, all of them 0."""
        return math.prod(outputs.shape[1:])

    def curvature(self, outputs: Tensor, targets: Tensor) -> DiagonalCurvature:
        """0: the loss is linear in the outputs."""
        return DiagonalCurvature(torch.zeros_like(outputs).flatten(1))

    def rounding(self, outputs: Tensor, targets: Tensor) -> Tensor | None:
        """Where the network ends in a log-softmax, this is what that loses; None elsewhere."""
        sums = self.positions(outputs, targets).rows(outputs).logsumexp(dim=1)
        if not bool((sums.abs() < NORMALIZED).all()):
            return None
        count, size = self.weights(outputs, targets), self.values(outputs.double(), targets)
        return rounding_and_size(outputs, count, size)
