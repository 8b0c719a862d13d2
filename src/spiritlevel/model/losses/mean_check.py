"""Checks on real batches that a user's loss is a mean over samples that do not interact."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ...ground.errors import SpiritlevelError

PerSample = Callable[[Tensor, Tensor], Tensor]
# Sums in another order differ by less, even over a million samples.
ROUND_OFF = {torch.float64: 1e-9, torch.float32: 1e-4}
ROUND_OFF_OF_HALF = 0.05


def check_one_target_per_sample(name: str, outputs: Tensor, targets: Tensor, where: str) -> None:
    """Refuse targets that cannot be cut where the outputs are cut."""
    if targets.shape[:1] != outputs.shape[:1]:
        raise SpiritlevelError(
            f"The targets of the loss {name!r} must hold one row per sample, as outputs of shape "
            f"{tuple(outputs.shape)} do. Got {tuple(targets.shape)} in {where}. Reshape them, and "
            "flatten outputs and targets in the loss if it needs that."
        )


def check_samples(
    name: str, loss: PerSample, values: Tensor, outputs: Tensor, targets: Tensor, where: str
) -> None:
    """Refuse a loss in which samples interact, or that is not the same when called again."""
    again = loss(outputs, targets)
    _refuse_random(name, values, again, where)
    _refuse_foreign_gradients(name, loss, outputs, targets, where)
    for part in splits(len(outputs), outputs.device):
        alone = call_part(name, loss, outputs[part], targets[part])
        apart = _distance(alone, values[part])
        if not bool((apart <= _allowed(values)).all()):
            worst = int(apart.nan_to_num(nan=torch.inf).argmax())
            raise SpiritlevelError(
                f"The loss {name!r} must not let samples interact. In {where} a sample has the "
                f"loss {float(values[part][worst]):.6g}, and {float(alone[worst]):.6g} when half "
                "of the batch is left out. Pass a loss in which each sample's value depends on its "
                "own outputs and target only."
            )


def _refuse_foreign_gradients(
    name: str, loss: PerSample, outputs: Tensor, targets: Tensor, where: str
) -> None:
    """Refuse a loss whose value for a sample has a gradient in the outputs of another one.

    This is 0 to the last digit without interaction, so it shows one that hardly moves the values.
    """
    if len(outputs) < 2 or not outputs.is_floating_point():
        return
    z = outputs.detach().requires_grad_()
    with torch.enable_grad():
        values = loss(z, targets)
    if not values.requires_grad or values.shape[:1] != z.shape[:1]:
        return
    for part in splits(len(z), z.device):
        chosen = torch.zeros_like(values).index_fill(0, part, 1.0)
        (gradient,) = torch.autograd.grad(values, z, chosen, retain_graph=True, allow_unused=True)
        if gradient is None:
            continue
        others = gradient.index_fill(0, part, 0.0).reshape(len(z), -1)
        foreign = others.abs().nan_to_num(nan=0.0).amax(dim=1)
        if bool(foreign.any()):
            raise SpiritlevelError(
                f"The loss {name!r} must not let samples interact. In {where} the loss of a sample "
                f"changes with the outputs of sample {int(foreign.argmax())} (slope "
                f"{float(foreign.max()):.2g}). Pass a loss in which each sample's value depends on "
                "its own outputs and target only."
            )


def check_mean(
    name: str,
    mean: Callable[[Tensor, Tensor], Any],
    values: Tensor,
    weights: Sequence[Tensor],
    outputs: Tensor,
    targets: Tensor,
    where: str,
) -> list[int]:
    """Which of the `weights` give the user's own mean, of this batch and of parts of it.

    Raises SpiritlevelError if none does, or if it cannot be told which.
    """
    given = mean(outputs, targets)
    if not isinstance(given, Tensor) or given.numel() != 1:
        return [0]  # a loss that leaves the mean to us
    _refuse_random(name, given, mean(outputs, targets), where)
    everything = torch.arange(len(outputs), device=outputs.device)
    parts = [everything, *splits(len(outputs), outputs.device)]
    of_parts = [call_part(name, mean, outputs[part], targets[part]) for part in parts]
    means = torch.stack([each.reshape(()).double() for each in of_parts])
    agreeing = []
    for index, weight in enumerate(weights):
        ours = torch.stack([values[part].double().sum() / weight[part].sum() for part in parts])
        size = values.abs().double().sum() / weight.sum()
        allowed = _allowed(given) * torch.maximum(size, means.abs().nan_to_num())
        same = (ours - means).abs() <= allowed
        if bool((same | (ours.isnan() & means.isnan())).all()):
            agreeing.append(index)
    if not agreeing:
        _refuse_mean(name, float(given), values, weights[0], where)
    totals = {float(weights[index].sum()) for index in agreeing}
    if len(totals) > 1:
        raise SpiritlevelError(
            f"How the loss {name!r} weights its samples cannot be told from {where}, where the "
            "loss of every sample is 0. Pass a function (outputs, targets) that returns one loss "
            "per sample."
        )
    return agreeing


def call_part(name: str, loss: PerSample, outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of a part of a batch; the whole batch did not raise."""
    try:
        return loss(outputs, targets)
    except (RuntimeError, IndexError, ValueError) as error:
        if isinstance(error, SpiritlevelError | torch.cuda.OutOfMemoryError):
            raise
        cause = str(error).strip().splitlines() or [""]
        raise SpiritlevelError(
            f"The loss {name!r} must take any number of samples. With outputs of shape "
            f"{tuple(outputs.shape)}, a part of a batch, it raised {type(error).__name__}: "
            f"{cause[0]}. Put what belongs to a sample, such as its weight, into the targets."
        ) from error


def splits(count: int, device: torch.device) -> Iterator[Tensor]:
    """Parts of a batch such that any two samples are apart in one of the splits."""
    index = torch.arange(count, device=device)
    for bit in range((count - 1).bit_length()):
        is_set = (index >> bit) % 2 == 1
        yield from (index[is_set], index[~is_set])


def _refuse_random(name: str, first: Tensor, second: Tensor, where: str) -> None:
    if not bool((_distance(first, second) <= _allowed(first)).all()):
        raise SpiritlevelError(
            f"The loss {name!r} must be a fixed function of outputs and targets. In {where} it "
            f"gave {float(first.double().mean()):.6g} and, called again, "
            f"{float(second.double().mean()):.6g}. Switch off what is random in it, and what it "
            "learns from call to call: loss.eval()."
        )


def _refuse_mean(name: str, given: float, values: Tensor, weights: Tensor, where: str) -> None:
    total = float(values.double().sum())
    is_sum = abs(given - total) <= _allowed(values) * max(abs(given), abs(total))
    cause = (
        "It is the sum, not the mean"
        if is_sum
        else "It weights the samples, compares them with each other, or divides by something else"
    )
    raise SpiritlevelError(
        f"The loss {name!r} must be the mean over its samples. In {where} it is {given:.6g}, and "
        f"the mean of its {len(values)} samples taken alone is "
        f"{total / float(weights.sum()):.6g}. {cause}. Pass a function (outputs, targets) that "
        "returns one loss per sample, or the torch module that has these weights."
    )


def _distance(a: Tensor, b: Tensor) -> Tensor:
    """|a − b| relative to the larger of the two, or to 1e-3 of the batch's if they are tiny."""
    a, b = a.double(), b.double()
    if a.shape != b.shape:
        return torch.full_like(a, torch.inf)
    size = torch.maximum(a.abs(), b.abs())
    distance = (a - b).abs() / torch.maximum(size, 1e-3 * size.amax()).clamp(min=1e-300)
    return distance.where(~(a.isnan() & b.isnan()), 0.0)  # the mean of no target that counts


def _allowed(values: Tensor) -> float:
    """The relative round-off of losses computed in this type."""
    return ROUND_OFF.get(values.dtype, ROUND_OFF_OF_HALF)
