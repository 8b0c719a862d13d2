"""The rows of the head: features and output curvature of every sample or position.

What needs them more than once (λ_max, Tr H²) keeps them if they fit in memory; otherwise the
network runs again for each use. The outputs of a language model's head are never formed: its rows
keep per token the sums of one sweep over the vocabulary, and products sweep over it again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor

from ...math.curvature import RowCurvature
from ...math.head import head_kappa, head_product, head_trace, stream_margins
from ...math.positions import OutputCurvature, Positions, row_curvature
from ...math.streaming import TokenSums, stream_product, stream_tokens
from ...model.batches import BatchLocation
from ...model.losses import CrossEntropy
from ...model.surface import Surface
from .head_layer import Head, head_input


@dataclasses.dataclass(frozen=True)
class RowBlock:
    """Some rows with their curvature, in float64."""

    features: Tensor
    curvature: RowCurvature

    @property
    def nbytes(self) -> int:
        """The bytes that keeping this block takes."""
        return self.features.nbytes + sum(t.nbytes for t in self.curvature.arguments())

    def trace_and_kappa(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The trace and κ of each row."""
        return (
            head_trace(self.curvature, self.features),
            head_kappa(self.curvature, self.features, weight.double()),
        )

    def add_product(self, direction: Tensor, image: Tensor) -> None:
        """Add Σ over the rows of A (V φ) φᵀ to `image`."""
        ones = torch.ones_like(self.features[:, 0])
        direction = direction.to(self.features.device)
        image += head_product(self.curvature, self.features, ones, direction).to(image.device)

    def on_host(self) -> RowBlock:
        """This block on the host, which has more memory than the device."""
        curvature = type(self.curvature)(*(t.cpu() for t in self.curvature.arguments()))
        return RowBlock(self.features.cpu(), curvature)


@dataclasses.dataclass(frozen=True)
class TokenBlock:
    """Some rows of a head whose outputs are not formed."""

    features: Tensor  # in the model's own precision
    masses: Tensor  # what the softmax Hessian of each row is multiplied by
    sums: TokenSums
    head: Head
    budget: int

    @property
    def nbytes(self) -> int:
        """The bytes that keeping this block takes."""
        return self.features.nbytes + 7 * self.masses.nbytes

    def trace_and_kappa(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The trace and κ of each row."""
        squares = self.masses * self.features.double().square().sum(dim=1)
        assert self.sums.quadratic is not None
        return squares * self.sums.gini, squares * self.sums.quadratic

    def add_product(self, direction: Tensor, image: Tensor) -> None:
        """Add Σ over the rows of A (V φ) φᵀ to `image`, which may be as large as the weight."""
        weight, bias = self.head.weight(), _bias(self.head)
        features = self.features.to(weight.device)
        sums = _moved(self.sums, weight.device)
        stream_product(
            features,
            weight,
            bias,
            sums,
            self.masses.to(weight.device),
            direction,
            budget=self.budget // 16,  # there are also vectors as large as the weight
            into=image,
        )

    def on_host(self) -> TokenBlock:
        """This block on the host, which has more memory than the device."""
        sums = _moved(self.sums, torch.device("cpu"))
        return dataclasses.replace(
            self, features=self.features.cpu(), masses=self.masses.cpu(), sums=sums
        )


HeadBlock = RowBlock | TokenBlock


def block_of_outputs(
    head: Head, a: Tensor, outputs: Tensor, curvature: OutputCurvature
) -> RowBlock:
    """The rows of a batch, from the head's input and the outputs."""
    rows = row_curvature(curvature, _positions(head, outputs))
    assert rows is not None  # if a loss combines positions, no head by position is found
    return RowBlock(head.features(a).double(), rows)


def block_of_tokens(
    surface: Surface, head: Head, a: Tensor, targets: Tensor, budget: int
) -> tuple[TokenBlock, Tensor]:
    """The rows of a batch from the head's input alone, and the weights of the rows."""
    loss = cast(CrossEntropy, surface.loss)
    features = head.features(a)
    row_targets = targets.flatten() if not targets.is_floating_point() else targets.flatten(0, -2)
    like = features.new_empty(len(features), 0, dtype=torch.float64)
    sums = stream_tokens(features, head.weight(), _bias(head), kappa=True, budget=budget)
    block = TokenBlock(features, loss.row_masses(like, row_targets), sums, head, budget)
    return block, loss.row_weights(like, row_targets)


def margins_of_tokens(
    head: Head, loss: CrossEntropy, a: Tensor, targets: Tensor, budget: int
) -> tuple[Tensor, Tensor]:
    """z_y − max_{j≠y} z_j of each row, and which rows count."""
    features, labels = head.features(a), targets.flatten()
    weight = head.weight()
    shown = loss.row_weights(features.new_empty(len(features), 0), labels) > 0
    labels = labels.clamp(0, len(weight) - 1)  # rows that do not count may hold any number
    return stream_margins(features, weight, _bias(head), labels, budget=budget), shown


def iterate_blocks(
    surface: Surface, head: Head, *, chunk: int, stream: int | None
) -> Iterator[HeadBlock]:
    """The rows of all data, by running the network; `stream` is a budget in bytes, or None."""
    for where, batch in surface.chunks(chunk):
        with torch.no_grad():
            yield _block(surface, head, where, batch, stream)


def _block(
    surface: Surface, head: Head, where: BatchLocation, batch: Any, stream: int | None
) -> HeadBlock:
    if stream is not None:
        a, targets = surface.features(batch, where=where, head=head.module)
        return block_of_tokens(surface, head, a, targets, stream)[0]
    outputs, targets = surface.outputs(batch, where=where, watch=head.module)
    features = head_input(head, surface.watched, outputs, str(where))
    curvature = surface.loss.curvature(outputs.double(), targets)
    return block_of_outputs(head, features, outputs, curvature)


def _positions(head: Head, outputs: Tensor) -> Positions:
    if head.by_position:
        return head.positions(outputs)
    return Positions((outputs[0].numel(),), 1)


def _moved(sums: TokenSums, device: torch.device) -> TokenSums:
    moved: dict[str, Any] = {
        name: None if values is None else values.to(device) for name, values in vars(sums).items()
    }
    return TokenSums(**moved)


def _bias(head: Head) -> Tensor | None:
    bias = cast(Tensor | None, head.module.bias)
    return None if bias is None else bias.detach()
