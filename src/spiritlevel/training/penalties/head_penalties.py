"""Flatness of the head as a penalty, in closed form: no probes, no second backward.

z = W φ + b is linear in W, so its Hessian block is known for any network below
(`spiritlevel.math.head`). The gradient flows through the curvature into W and b, and through the
features φ into everything below.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor, nn

from ...engine.head.head_layer import CONVOLUTIONS, Head, choose_head, find_heads
from ...errors import SpiritlevelError
from ...math.head import head_kappa, head_trace
from ...math.positions import Positions, row_curvature
from ...model.distributed import refuse_sharded, unwrapped
from ...model.layer_hooks import LayerUse
from ...model.losses import CrossEntropy, Loss, resolve
from .arguments import check_trained, check_weight, find_layer
from .gap_softmax import check_labels, differentiable_curvature
from .layer_input import LayerTap, Passed
from .softmax_heads import softmax_head
from .trace_squared import AnyLoss

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

    For a last linear layer outside a model, or one that no hook reaches; (N, d) features. H is in
    the weight alone, as in the measures of these names. Tr H² is not divided by the batch size.

    >>> import torch
    >>> weight = torch.zeros(2, 2, requires_grad=True)              # p = (½, ½), the Gini term is ½
    >>> value = head_penalty("trace", torch.tensor([[3.0, 4.0]]), weight, torch.tensor([0]))
    >>> float(value.detach())                                       # ½ · 25
    12.5
    """
    check_kind(kind)
    found = resolve(loss)
    outputs = features @ weight.T
    outputs = outputs if bias is None else outputs + bias
    targets, labeled = check_labels(found, outputs, targets)
    return _closed_form(kind, found, features, weight, outputs, targets, labeled)[0]


class HeadPenalty:
    """weight · head.trace, head.kappa or head.trace_squared of the batch.

        penalty = HeadPenalty(model, kind="kappa", weight=0.01)
        outputs = model(x)
        loss = F.cross_entropy(outputs, y) + penalty(outputs, y)

    The features are taken by a hook in the forward that gave `outputs`. The head is the last linear
    or convolutional layer of the model, or the one named by `head`; its output, or the average of
    it over positions, must be the model's. `remove` takes the hook away; so does leaving a
    `with HeadPenalty(...) as penalty:` block.
    """

    def __init__(
        self,
        model: nn.Module,
        kind: HeadKind = "trace",
        weight: float = 0.01,
        *,
        head: str | None = None,
        loss: AnyLoss = "cross_entropy",
    ) -> None:
        """`value` holds the measure of the last batch, without the weight."""
        refuse_sharded(model)
        model = unwrapped(model)
        self.kind = check_kind(kind)
        self.weight = check_weight(weight)
        self.loss: Loss = resolve(loss)
        kinds = (nn.Linear, *CONVOLUTIONS)
        self.layer = _last_layer(model, kinds) if head is None else head
        self._module = find_layer(model, self.layer, kinds)
        self._head: Head | None = None
        self._tap = LayerTap(self.layer, self._module)
        self.value: Tensor | None = None

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The penalty of the batch whose outputs these are."""
        passed = self._tap.take()
        targets, labeled = check_labels(self.loss, outputs, targets)
        check_trained(self.layer, self._module)
        head = self._found(passed, outputs, targets)
        features = passed.input
        if features.dim() > 2:  # an alias of plain features would cost a step of the backward
            features = head.features(features)
        penalty, self.value = _closed_form(
            self.kind,
            self.loss,
            features,
            _matrix(self._module),
            outputs,
            targets,
            labeled,
            head.positions(outputs) if head.by_position else None,
            self.weight,
        )
        return penalty

    def remove(self) -> None:
        """Take the hook away; the penalty cannot be called any more."""
        self._tap.remove()

    def __enter__(self) -> HeadPenalty:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()

    def _found(self, passed: Passed, outputs: Tensor, targets: Tensor) -> Head:
        """The head, after a look at the numbers: the first time, and where memory was copied."""
        same = passed.output.data_ptr() == outputs.data_ptr()
        if self._head is None or not same:
            use = LayerUse(
                self.layer, self._module, passed.input.detach(), passed.output.detach(), None
            )
            acting = self.loss.positions(outputs, targets)
            self._head = choose_head(find_heads([use], outputs, acting), self.layer)
        return self._head


def check_kind(kind: Any) -> HeadKind:
    """One of the three."""
    if kind not in get_args(HeadKind):
        raise SpiritlevelError(
            "The 'kind' argument of the head penalty must be 'trace', 'kappa' or 'trace_squared'. "
            f"Got {kind!r}. 'kappa' is the one that rescaling the layers leaves as it is."
        )
    known: HeadKind = kind
    return known


def _closed_form(
    kind: HeadKind,
    loss: Loss,
    features: Tensor,
    weight: Tensor,
    outputs: Tensor,
    targets: Tensor,
    labeled: bool,
    positions: Positions | None = None,
    strength: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """`strength` times the measure, and the measure without its graph.

    `labeled` says whether every target is a class; `positions` is None for one row a sample.
    """
    if isinstance(loss, CrossEntropy):
        logits, row_targets = outputs, targets
        if outputs.dim() > 2:
            acting = loss.positions(outputs, targets)
            logits, row_targets = acting.rows(outputs), loss.row_targets(targets, acting)
        if labeled and loss.counts_alike():
            mean = _per(kind, float(len(logits)))
            return softmax_head(kind, logits, features, weight, None, mean, strength)
        wide = logits.detach().to(torch.promote_types(logits.dtype, torch.float32))
        mass = loss.row_masses(wide, row_targets)
        total = loss.row_weights(wide, row_targets).sum()  # half precision ends at 65,504
        return softmax_head(kind, logits, features, weight, mass, _per(kind, total), strength)
    scale = _per(kind, loss.weights(outputs.detach(), targets).sum())
    positions = positions or Positions((outputs[0].numel(),), 1)
    rows = row_curvature(differentiable_curvature(loss, outputs, targets), positions)
    assert rows is not None  # a loss that ties positions together was refused with the head
    if kind == "trace":
        found = head_trace(rows, features)
    elif kind == "kappa":
        found = head_kappa(rows, features, weight)
    else:
        found = (features @ features.T).square() * rows.pairs(rows)  # type: ignore[arg-type]
    measure = found.sum() * scale
    return strength * measure, measure.detach()


def _per(kind: HeadKind, total: Total) -> Total:
    """What makes a mean of the sum: Tr H² has two sums over the samples."""
    return 1.0 / (total * total if kind == "trace_squared" else total)


def _matrix(module: nn.Module) -> Tensor:
    """W of shape (C, d), columns in the order of the features."""
    weight: Tensor = module.weight  # type: ignore[assignment]
    return weight.flatten(2).mT.flatten(1) if weight.dim() > 2 else weight


def _last_layer(model: nn.Module, kinds: tuple[type[nn.Module], ...]) -> str:
    found = [name for name, module in model.named_modules() if isinstance(module, kinds)]
    if not found:
        raise SpiritlevelError(
            "The model of a HeadPenalty must have a linear or convolutional layer. Got none. Use "
            "head_penalty(kind, features, weight, targets) with the tensors themselves."
        )
    return found[-1]
