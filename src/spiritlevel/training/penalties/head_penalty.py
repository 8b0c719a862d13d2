"""Flatness of the head as a penalty, in closed form: no probes, no second backward pass.

z = W φ + b is linear in W, so its Hessian block is known for any network below
(`spiritlevel.math.head`). The gradient flows through the curvature into W and b, and through the
features φ into everything below.
"""

from __future__ import annotations

import contextlib
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor, nn

from ...engine.head.head_layer import CONVOLUTIONS, Head, choose_head, find_heads
from ...ground.errors import SpiritlevelError
from ...ground.need import need, one_of
from ...math.head import head_kappa, head_trace
from ...math.positions import Positions, row_curvature
from ...model.layer_hooks import LayerUse
from ...model.losses import AnyLoss, CrossEntropy, Loss, resolve, total_weight
from .argument_checks import check_labels, check_trained
from .differentiable_curvature import differentiable_curvature, softmax_head
from .forward_recorder import ForwardRecorder, find_layer, take_layer_calls
from .penalty import Penalty
from .penalty_batch import PenaltyBatch

HeadKind = Literal["trace", "kappa", "trace_squared"]
Total = TypeVar("Total", float, Tensor)


def head_penalty(
    kind: HeadKind,
    features: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    loss: AnyLoss = "cross_entropy",
) -> Tensor:
    """head.trace, head.kappa or head.trace_squared of a batch, to be differentiated.

    For a last linear layer outside a model, or one that no hook reaches; `features` has shape
    (N, d). H is the Hessian in the weight alone, as in the measures of these names. Tr H² is not
    divided by the batch size.

    >>> import torch
    >>> weight = torch.zeros(2, 2, requires_grad=True)              # p = (½, ½), the Gini term is ½
    >>> value = head_penalty("trace", torch.tensor([[3.0, 4.0]]), weight, torch.tensor([0]))
    >>> float(value.detach())                                       # ½ · 25
    12.5
    """
    check_kind(kind)
    loss_function = resolve(loss)
    outputs = features @ weight.T
    outputs = outputs if bias is None else outputs + bias
    targets, labeled = check_labels(loss_function, outputs, targets)
    return _closed_form(kind, loss_function, features, weight, outputs, targets, labeled)


class HeadPenalty(Penalty):
    """weight · head.trace, head.kappa or head.trace_squared of the batch, by `kind`.

    Called like every `Penalty`. The head is the last linear or convolutional layer of the model, or
    the one named by `head`. Its output, or the average of it over positions, must be the model's.
    """

    def __init__(
        self,
        model: nn.Module,
        weight: float = 0.01,
        *,
        kind: HeadKind = "trace",
        head: str | None = None,
        every: int = 1,
        loss: AnyLoss = "cross_entropy",
        generator: torch.Generator | None = None,
    ) -> None:
        """`every`, `loss` and `generator` as in Penalty; these penalties are not random."""
        super().__init__(model, weight, every=every, loss=loss, generator=generator)
        self.kind = check_kind(kind)
        layer_types = (nn.Linear, *CONVOLUTIONS)
        self.layer = _last_layer(self.model, layer_types) if head is None else head
        self._module = find_layer(self.model, self.layer, layer_types)
        self._layer_recorder = ForwardRecorder(self._module)
        self._head: Head | None = None

    def compute(self, batch: PenaltyBatch) -> Tensor:
        """The measure of the batch, in closed form."""
        layer_input, layer_output = take_layer_calls(self._layer_recorder, self.layer)[-1]
        outputs = batch.outputs
        targets, labeled = check_labels(self.loss, outputs, batch.targets)
        check_trained(self.layer, self._module)
        head = self._checked_head(layer_input, layer_output, outputs, targets)
        # Plain features are used as they are: an alias would cost a step of the backward pass.
        features = head.features(layer_input) if layer_input.dim() > 2 else layer_input
        positions = head.positions(outputs) if head.by_position else None
        matrix = _matrix(self._module)
        return _closed_form(
            self.kind, self.loss, features, matrix, outputs, targets, labeled, positions
        )

    def around_forward(self) -> contextlib.AbstractContextManager[None]:
        """Record the input of the head: these are the features."""
        return self._layer_recorder

    def _checked_head(
        self, layer_input: Tensor, layer_output: Tensor, outputs: Tensor, targets: Tensor
    ) -> Head:
        """The head; compared with the outputs the first time, and where memory was copied."""
        same = layer_output.data_ptr() == outputs.data_ptr()
        if self._head is None or not same:
            use = LayerUse(
                self.layer, self._module, layer_input.detach(), layer_output.detach(), None
            )
            acting = self.loss.positions(outputs, targets)
            self._head = choose_head(find_heads([use], outputs, acting), self.layer)
        return self._head


def check_kind(kind: Any) -> HeadKind:
    """Refuse a `kind` that is not one of the three."""
    wanted = "'trace', 'kappa' or 'trace_squared'"
    then = "'kappa' is the one that does not change when layers are rescaled."
    fits = one_of(get_args(HeadKind))
    checked: HeadKind = need("kind", kind, fits, wanted, then, of="the head penalty")
    return checked


def _closed_form(
    kind: HeadKind,
    loss: Loss,
    features: Tensor,
    weight: Tensor,
    outputs: Tensor,
    targets: Tensor,
    labeled: bool,
    positions: Positions | None = None,
) -> Tensor:
    """The measure of the batch, with its graph.

    `labeled` says whether every target is a class; `positions` is None for one row per sample.
    """
    if isinstance(loss, CrossEntropy):
        logits, row_targets = outputs, targets
        if outputs.dim() > 2:
            acting = loss.positions(outputs, targets)
            logits, row_targets = acting.rows(outputs), loss.row_targets(targets, acting)
        if labeled and loss.counts_alike():
            mean = _scale(kind, float(len(logits)))
            return softmax_head(kind, logits, features, weight, None, mean)
        wide = logits.detach().to(torch.promote_types(logits.dtype, torch.float32))
        mass = loss.row_masses(wide, row_targets)
        total = loss.row_weights(wide, row_targets).sum()  # half precision ends at 65,504
        return softmax_head(kind, logits, features, weight, mass, _scale(kind, total))
    scale = _scale(kind, total_weight(loss, outputs, targets))
    positions = positions or Positions((outputs[0].numel(),), 1)
    rows = row_curvature(differentiable_curvature(loss, outputs, targets), positions)
    assert rows is not None  # a loss that ties positions together was refused with the head
    if kind == "trace":
        terms = head_trace(rows, features)
    elif kind == "kappa":
        terms = head_kappa(rows, features, weight)
    else:
        terms = (features @ features.T).square() * rows.pairs(rows)  # type: ignore[arg-type]
    return terms.sum() * scale


def _scale(kind: HeadKind, total: Total) -> Total:
    """What turns the sum into a mean: Tr H² has two sums over the samples."""
    return 1.0 / (total * total if kind == "trace_squared" else total)


def _matrix(module: nn.Module) -> Tensor:
    """W of shape (C, d), columns in the order of the features."""
    weight: Tensor = module.weight  # type: ignore[assignment]
    return weight.flatten(2).mT.flatten(1) if weight.dim() > 2 else weight


def _last_layer(model: nn.Module, layer_types: tuple[type[nn.Module], ...]) -> str:
    paths = [path for path, module in model.named_modules() if isinstance(module, layer_types)]
    if not paths:
        raise SpiritlevelError(
            "The model of a HeadPenalty must have a linear or convolutional layer. Got none. Use "
            "head_penalty(kind, features, weight, targets) with the tensors themselves."
        )
    return paths[-1]
