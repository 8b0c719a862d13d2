"""Losses as users pass them, each with the same written as a plain mean over all samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclasses.dataclass(frozen=True)
class Loss:
    """A loss as a user passes it, and the same as a plain mean over all samples."""

    given: Any
    plain: Callable[[Tensor, Tensor], Tensor]
    targets: Callable[[tuple[int, ...], torch.Generator], Tensor]  # from the outputs' shape


def _classes(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randint(shape[1], shape[:1], generator=generator)


def _some_ignored(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    targets = _classes(shape, generator)
    targets[::3] = -100
    return targets


def _marked(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    targets = _classes(shape, generator)
    targets[1::2] = 1  # and 1 is the value to leave out
    targets[0] = 2
    return targets


def _of_tokens(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    targets = torch.randint(shape[-1], shape[:-1], generator=generator)
    targets.view(-1)[::3] = -100
    return targets


def _of_pixels(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randint(shape[1], (shape[0], *shape[2:]), generator=generator)


def _probabilities(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64).softmax(dim=1)


def _unnormalized(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64) + 0.1


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _binary(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64).round()


WEIGHTS = torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64)


def saddle(outputs: Tensor, targets: Tensor) -> Tensor:
    """Convex in some directions, concave in others: the output Hessian has both signs."""
    gap = outputs - targets
    return (gap[:, 0] * gap[:, 1] + gap[:, 2] ** 3 - 0.3 * gap[:, 1] ** 2) + gap.cos().sum(dim=1)


def linear_in_outputs(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs * targets).sum(dim=1)


LOSSES = {
    "cross_entropy": Loss("cross_entropy", F.cross_entropy, _classes),
    "label_smoothing": Loss(
        nn.CrossEntropyLoss(label_smoothing=0.2),
        lambda z, y: F.cross_entropy(z, y, label_smoothing=0.2),
        _classes,
    ),
    "class_weights": Loss(
        nn.CrossEntropyLoss(weight=WEIGHTS),
        lambda z, y: F.cross_entropy(z, y, weight=WEIGHTS.to(z)),
        _classes,
    ),
    "weights_and_smoothing": Loss(
        nn.CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.3),
        lambda z, y: F.cross_entropy(z, y, weight=WEIGHTS.to(z), label_smoothing=0.3),
        _classes,
    ),
    "ignored": Loss("cross_entropy", F.cross_entropy, _some_ignored),
    "ignore_index": Loss(
        nn.CrossEntropyLoss(weight=WEIGHTS, ignore_index=1, label_smoothing=0.1),
        lambda z, y: F.cross_entropy(
            z, y, weight=WEIGHTS.to(z), ignore_index=1, label_smoothing=0.1
        ),
        _marked,
    ),
    "soft_targets": Loss("cross_entropy", F.cross_entropy, _probabilities),
    "unnormalized_soft_targets": Loss(
        nn.CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.2),
        lambda z, y: F.cross_entropy(z, y, weight=WEIGHTS.to(z), label_smoothing=0.2),
        _unnormalized,
    ),
    "tokens": Loss(  # the classes last, one target a token, some of them left out
        nn.CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.1),
        lambda z, y: F.cross_entropy(
            z.movedim(-1, 1), y, weight=WEIGHTS.to(z), label_smoothing=0.1
        ),
        _of_tokens,
    ),
    "pixels": Loss("cross_entropy", F.cross_entropy, _of_pixels),  # the classes second, as in torch
    "mse": Loss("mse", F.mse_loss, _normal),
    "bce": Loss("bce", F.binary_cross_entropy_with_logits, _binary),
    "bce_weighted": Loss(
        nn.BCEWithLogitsLoss(pos_weight=WEIGHTS, weight=WEIGHTS.flip(0)),
        lambda z, y: F.binary_cross_entropy_with_logits(
            z, y, pos_weight=WEIGHTS.to(z), weight=WEIGHTS.flip(0).to(z)
        ),
        _binary,
    ),
    "saddle": Loss(saddle, lambda z, y: saddle(z, y).mean(), _normal),
    "linear_in_outputs": Loss(
        linear_in_outputs, lambda z, y: linear_in_outputs(z, y).mean(), _normal
    ),
    "huber": Loss(nn.HuberLoss(delta=0.7), lambda z, y: F.huber_loss(z, y, delta=0.7), _normal),
}
