"""What `activation_curvature` returns."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from ...content import Notes, Part, Text
from ...notebooks import Described
from ...records import Cost
from ..operator.kinds import Kind


@dataclasses.dataclass(frozen=True, eq=False)
class ActivationCurvature(Described):
    """The diagonal of the Hessian or GGN of every sample's own loss in one layer's output.

    The numbers are exact up to round-off. A channel's number is the sum over its positions: the
    pixels of a feature map, the tokens of a sequence.
    """

    layer: str
    kind: Kind
    diagonal: Tensor  # of the mean loss, in the shape of one sample's output, float64
    samples: Tensor  # by sample and channel; their mean belongs to the mean loss
    weights: Tensor  # of the samples in the mean loss, 1 on average: some have more targets
    bends: str  # by what the rest of the network bends; empty if it is piecewise linear
    cost: Cost
    settings: dict[str, Any]

    @property
    def channels(self) -> Tensor:
        """The diagonal for the mean loss, summed over the positions of each channel."""
        return self.samples.mean(dim=0)

    @property
    def trace(self) -> float:
        """The trace for the mean loss: the sum over all channels."""
        return float(self.channels.sum())

    @property
    def data_stderr(self) -> Tensor:
        """How much other samples would change each channel; nan for a single sample."""
        count = len(self.samples)
        if count < 2:
            return torch.full_like(self.channels, torch.nan)
        # of a ratio of two means: the scatter around the ratio
        apart = self.samples - self.weights[:, None] * self.channels
        return apart.std(dim=0) / count**0.5

    def describe(self) -> list[Part]:
        """The trace, the channels that have most of it, and what was counted."""
        order = self.channels.argsort(descending=True)[:5].tolist()
        largest = ", ".join(f"{i}: {float(self.channels[i]):.3g}" for i in order)
        count = int(self.settings["num_samples"])
        matrix = "Hessian" if self.kind == "hessian" else "GGN"
        lines = [
            f"{self.layer}: trace of the {matrix} in its output {self.trace:.6g}, exact",
            f"{len(self.channels)} channels, largest {largest}",
        ]
        return [Text(lines), Notes(self.cost.passes(count), count)]
