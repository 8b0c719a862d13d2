"""The inputs of the head, with targets and losses: the rows that a density is estimated from."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import torch
from torch import Tensor

from ...errors import NotApplicable, SpiritlevelError, is_out_of_memory
from ...model.arithmetic import full_precision
from ...model.losses import CrossEntropy, Loss
from ...records import Cost
from ..workspace import STREAM_FROM, Workspace
from .head_layer import Head, head_input

MIN_ROWS, MAX_ROWS = 4, 20_000  # a density is computed from all pairs of rows


@dataclasses.dataclass(frozen=True)
class HeadFeatures:
    """The samples (or positions) that count, on the host and in float64.

    Features that do not vary are left out: there is no density in their direction. Rows are sorted
    by loss and features by variance, so that a random number always goes to the same row and
    feature, however the data was divided or shuffled and the units were numbered.
    """

    features: Tensor  # shape: (rows, m)
    weight: Tensor  # of the head for these features, shape: (C, m)
    outputs: Tensor  # of the whole head, shape: (rows, C)
    targets: Tensor
    losses: Tensor  # shape: (rows,); their mean is the loss of the data
    num_constant: int  # features left out
    loss: Loss
    shape: tuple[int, ...]  # of a row's outputs as the loss takes them
    mean_weight: float  # what a value of the loss is divided by
    cost: Cost

    @property
    def largest_loss(self) -> float:
        """The largest loss of any row."""
        return float(self.losses.max())

    def losses_at(self, outputs: Tensor, rows: Tensor) -> Tensor:
        """The losses of some rows for other outputs than their own."""
        values = self.loss.values(outputs.reshape(-1, *self.shape), self.targets[rows])
        return values.double() / self.mean_weight


def head_features(workspace: Workspace) -> HeadFeatures:
    """The rows of all processes, from one forward pass that all measures share."""
    return workspace.once("head_features", lambda: _collect(workspace))


def check_rows(workspace: Workspace, measure: str) -> None:
    """Refuse a head whose rows do not fit in memory, or are too few or too many for a density."""
    num_outputs, num_features = workspace.head.weight().shape
    if num_outputs >= STREAM_FROM:
        raise SpiritlevelError(
            f"The measure {measure!r} needs the outputs of the head for many perturbed features, "
            f"so a head of fewer than {STREAM_FROM} outputs. Got {num_outputs} in layer "
            f"{workspace.head.layer!r}. Leave it out of 'measures'; head.kappa holds for any "
            "vocabulary."
        )
    positions = workspace.plan.num_outputs // num_outputs if workspace.head.by_position else 1
    rows = workspace.num_samples * positions
    what = f"{rows} rows ({workspace.num_samples} samples × {positions} positions)"
    if not MIN_ROWS <= rows <= MAX_ROWS:
        raise SpiritlevelError(
            f"The measure {measure!r} estimates a density from all pairs of samples, and needs "
            f"{MIN_ROWS} to {MAX_ROWS} of them. Got {what}. Pass "
            f"{'more' if rows < MIN_ROWS else 'a random part of the'} data."
        )
    size = 8 * rows * (2 * num_features + num_outputs)
    if size > workspace.memory:
        raise SpiritlevelError(
            f"The measure {measure!r} keeps the features of all samples: {what} of {num_features} "
            f"features take {size >> 20} MiB. Got memory={workspace.memory}. Pass a random part "
            f"of the data, or memory={size}."
        )


def _collect(workspace: Workspace) -> HeadFeatures:
    surface, head = workspace.surface, workspace.head
    chunk = workspace.plan.footprint.chunk(workspace.memory, sweep=False)
    before = surface.cost
    collected: list[tuple[Tensor, Tensor, Tensor]] = []  # features, targets, weights
    shape: tuple[int, ...] = ()
    with torch.no_grad(), full_precision(), surface.processes.together():
        for where, batch in surface.chunks(chunk):
            outputs, targets = surface.outputs(batch, where=where, watch=head.module)
            features = head.features(head_input(head, surface.watched, outputs, str(where)))
            rows, shape = _row_targets(surface.loss, head, outputs, targets)
            like = outputs.new_zeros(len(rows), *shape)
            weights = surface.loss.weights(like, rows).double()
            collected.append((features.double().cpu(), rows.cpu(), weights.cpu()))
            _check_rows_add_up(surface.loss, head, outputs, targets, features, rows, shape)
    cost = surface.processes.total_cost(surface.cost - before)
    gathered = surface.processes.gather((collected, shape))
    shape = next(s for _, s in gathered if s)
    parts = [part for of_process, _ in gathered for part in of_process]
    features, rows, weights = (torch.cat(kind) for kind in zip(*parts, strict=True))
    counts = weights > 0
    features, rows, weights = features[counts], rows[counts], weights[counts]
    if len(features) < MIN_ROWS:
        raise SpiritlevelError(
            f"A density of the head's features needs at least {MIN_ROWS} targets that count. "
            f"Got {len(features)} of {len(counts)}. Check ignore_index and the mask, or pass more "
            "data."
        )
    return _arranged(workspace, features, rows, shape, float(weights.mean()), cost)


def _row_targets(
    loss: Loss, head: Head, outputs: Tensor, targets: Tensor
) -> tuple[Tensor, tuple[int, ...]]:
    """The target of every row of the head, and the shape of a row's outputs."""
    if isinstance(loss, CrossEntropy):
        rows = loss.row_targets(targets, loss.positions(outputs, targets))
        return rows, (len(head.weight()),)
    if head.by_position:
        return head.positions(outputs).rows(targets), (len(head.weight()),)
    return targets, tuple(outputs.shape[1:])


def _check_rows_add_up(
    loss: Loss,
    head: Head,
    outputs: Tensor,
    targets: Tensor,
    features: Tensor,
    rows: Tensor,
    shape: tuple[int, ...],
) -> None:
    """Refuse a loss in which rows interact: the rows' losses must add up to the network's."""
    given = _outputs(head, features).reshape(-1, *shape)
    expected = float(loss.values(outputs.double(), targets).sum())
    try:
        came = float(loss.values(given, rows).sum())
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        came, cause = float("nan"), f" ({error})"
    else:
        cause = ""
    allowed = min(1e4 * torch.finfo(outputs.dtype).eps, 0.05) * max(abs(expected), 1.0)
    if not abs(came - expected) <= allowed:
        raise SpiritlevelError(
            f"The loss {loss.name!r} must be a loss of each row of the head alone. Its rows add up "
            f"to {came:.6g}, the network's loss to {expected:.6g}{cause}. Leave bound.* out of "
            "'measures', or pass a loss without weights by position."
        )


def _outputs(head: Head, features: Tensor) -> Tensor:
    """W φ + b in float64."""
    weight = head.weight().double()
    bias = cast(Tensor | None, head.module.bias)
    outputs = features.double() @ weight.to(features.device).T
    return outputs if bias is None else outputs + bias.detach().double().to(features.device)


def _arranged(
    workspace: Workspace,
    features: Tensor,
    rows: Tensor,
    shape: tuple[int, ...],
    mean: float,
    cost: Cost,
) -> HeadFeatures:
    """In an order that is the network's own, without features that are constant."""
    head: Any = workspace.head
    outputs, loss = _outputs(head, features), workspace.surface.loss
    losses = loss.values(outputs.reshape(-1, *shape), rows).double() / mean
    by_size = features.square().sum(dim=1).argsort(stable=True)
    order = by_size[losses[by_size].argsort(stable=True)]
    spread, size = features.std(dim=0), features.mean(dim=0).abs()
    round_off = min(1e3 * torch.finfo(workspace.surface.dtype).eps, 0.05)
    varying = spread > round_off * size
    columns = spread.argsort(stable=True)
    columns = columns[varying[columns]]
    if not len(columns):
        raise NotApplicable(
            f"A density of the head's features needs some that vary over the data. All "
            f"{features.shape[1]} inputs of layer {head.layer!r} are constant. The network ignores "
            "its input (collapsed, or the data is one sample repeated): look at the training run."
        )
    return HeadFeatures(
        features=features[order][:, columns],
        weight=head.weight().double().cpu()[:, columns],
        outputs=outputs[order],
        targets=rows[order],
        losses=losses[order],
        num_constant=features.shape[1] - len(columns),
        loss=loss,
        shape=shape,
        mean_weight=mean,
        cost=cost,
    )
