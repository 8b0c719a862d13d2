"""Relative flatness κ of one linear layer inside the network, as a penalty.

κ = mean_n Σ_k σ_k ‖a_n‖² ‖∂(s_k·z_n)/∂a_n‖², with a the layer's input and s_k the columns of the
output curvature, ∇²_z ℓ = Σ_k σ_k s_k s_kᵀ: one backward pass per column, or one per probe, which
is a sum of all columns with random signs and unbiased. Where the outputs are piecewise linear in
the layer's weight (ReLU networks) this is κ of the Hessian. Where they are not (GELU, attention
above the layer) it is κ of the Gauss-Newton matrix, without the curvature of the network itself.

A layer that acts several times on a sample, at several positions or in several calls, has the sum
of these uses in place of the product: ‖Σ_t b_t a_tᵀ‖², with b = ∂(s·z)/∂a. Where rows depend on
several samples (experts, batch statistics) the sum is over the whole batch; the signs of different
samples are independent, so that a probe is still unbiased.

A layer may get its samples first, second behind time, repeated, or mixed with each other. The
outputs tell: a derivative of the outputs in which sample n has the factor c_n has that factor in
the rows of sample n and in no others.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from ...ground.errors import SpiritlevelError
from ...math.curvature import DiagonalCurvature
from ...math.positions import OutputCurvature
from ...model.layers.layout import Layout
from ...model.losses import AnyLoss, resolve, total_weight
from .argument_checks import check_labels, check_probes, check_trained
from .differentiable_curvature import differentiable_curvature
from .forward_recorder import ForwardRecorder, check_uses, find_layer, take_layer_calls
from .penalty import Penalty
from .penalty_batch import PenaltyBatch
from .random_signs import draw_signs

ROUND_OFF = 1e3  # in units of eps: two backward passes agree to that
SMALL = 1e-2  # of the largest derivative: rows below it are judged as if they were that large


def kappa_penalty(
    inputs: Tensor | Sequence[Tensor],
    outputs: Tensor,
    targets: Tensor,
    *,
    loss: AnyLoss = "cross_entropy",
    probes: int | None = 1,
    generator: torch.Generator | None = None,
) -> Tensor:
    """κ of the linear layer that `inputs` went into on the way to `outputs`.

    `inputs` must be in the graph of `outputs`, and go into that layer alone: pass `a.view_as(a)` to
    the layer where a is used elsewhere too. Pass a list for a layer that is called several times.
    The last dimension holds the features; where the samples are among the others is found out.
    `probes=None` takes all columns: C − 1 backward passes for cross-entropy, no randomness.
    """
    if probes is not None:
        check_probes(probes)
    loss_function = resolve(loss)
    targets, _ = check_labels(loss_function, outputs, targets)
    curvature = differentiable_curvature(loss_function, outputs, targets)
    uses, layouts = _checked_uses(inputs, outputs, probes)
    a = _joined(uses, layouts)
    total = outputs.new_zeros(())
    for column in _columns(curvature, outputs, probes, generator):
        signals = torch.autograd.grad(outputs, uses, column.view_as(outputs), create_graph=True)
        total = total + _squared(a, _joined(signals, layouts))
    weight = total_weight(loss_function, outputs, targets)
    return total / (weight * (1 if probes is None else probes))


class KappaPenalty(Penalty):
    """weight · κ of a chosen linear layer.

    Called like every `Penalty`. `layer` is the path of the layer; all calls of it in the forward
    pass count. `probes` is the number of random sums of columns; None takes all columns, without
    randomness.
    """

    def __init__(
        self,
        model: nn.Module,
        weight: float = 0.01,
        *,
        layer: str,
        probes: int | None = 1,
        every: int = 1,
        loss: AnyLoss = "cross_entropy",
        generator: torch.Generator | None = None,
    ) -> None:
        """`every`, `loss` and `generator` as in Penalty."""
        super().__init__(model, weight, every=every, loss=loss, generator=generator)
        self.layer = layer
        self.probes = None if probes is None else check_probes(probes)
        self._module = find_layer(self.model, layer, (nn.Linear,))
        if type(self._module).forward is not nn.Linear.forward:
            raise SpiritlevelError(
                f"The layer {layer!r} of a κ penalty must compute what nn.Linear computes. Got a "
                f"{type(self._module).__name__} with its own forward. Choose another layer."
            )
        self._layer_recorder = ForwardRecorder(self._module, separate_input=True, every_call=True)

    def compute(self, batch: PenaltyBatch) -> Tensor:
        """κ of the batch, or an unbiased estimate of it."""
        layer_inputs = [call[0] for call in take_layer_calls(self._layer_recorder, self.layer)]
        check_trained(self.layer, self._module)
        check_uses(self.layer, self._module, len(layer_inputs), batch.outputs)
        return kappa_penalty(
            layer_inputs,
            batch.outputs,
            batch.targets,
            loss=self.loss,
            probes=self.probes,
            generator=self.generator,
        )

    def around_forward(self) -> contextlib.AbstractContextManager[None]:
        """Record the layer's input, which κ needs."""
        return self._layer_recorder


def _checked_uses(
    inputs: Tensor | Sequence[Tensor], outputs: Tensor, probes: int | None
) -> tuple[list[Tensor], list[Layout | None]]:
    """The inputs that the outputs depend on, and where the samples are in them."""
    found = rows_by_sample([inputs] if isinstance(inputs, Tensor) else inputs, outputs)
    if not found:
        raise SpiritlevelError(
            "The 'outputs' of a κ penalty must come from the forward pass in which the layer was "
            "used. Got outputs that do not depend on its input. Call the penalty right after the "
            "forward pass, with what the model returned."
        )
    mixed = [tuple(a.shape) for a, layout in found if layout is None]
    if mixed and probes is None:
        raise SpiritlevelError(
            "Every row of the layer's input must belong to one sample if 'probes' is None. Got an "
            f"input of shape {mixed[0]} whose rows depend on several of the {len(outputs)} samples "
            "or are in no regular order. Take probes=1 or more: random estimates do not need that."
        )
    return [a for a, _ in found], [layout for _, layout in found]


def _joined(uses: Sequence[Tensor], layouts: list[Layout | None]) -> Tensor:
    """The rows of all uses by sample, shape (N, T, d); (1, T, d) if some cannot be told apart."""
    parts = [split_rows(a, layout) for a, layout in zip(uses, layouts, strict=True) if layout]
    if len(parts) < len(uses):
        parts = [a.reshape(1, -1, a.shape[-1]) for a in uses]
    return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]


def _squared(a: Tensor, b: Tensor) -> Tensor:
    """Σ_n ‖Σ_t b_t a_tᵀ‖², by the Gram matrices of the rows if there are few of them."""
    if a.shape[1] > a.shape[2]:
        return (b.mT @ a).square().sum()
    return ((a @ a.mT) * (b @ b.mT)).sum()


def _columns(
    curvature: OutputCurvature,
    outputs: Tensor,
    probes: int | None,
    generator: torch.Generator | None,
) -> Iterator[Tensor]:
    """Columns whose outer products add up to ∇²ℓ: all of them, or one random sum per probe."""
    if isinstance(curvature, DiagonalCurvature):
        root = _root(curvature.diagonal)
        for signs in _signs(root.detach(), probes, generator):
            yield root * signs
    elif probes is None:
        yield from (column for column, _ in curvature.columns())
    else:
        like = outputs.detach().new_empty(len(outputs), curvature.num_signs)
        for signs in _signs(like, probes, generator):
            [(column, _)] = curvature.probe(signs)
            yield column


def _signs(like: Tensor, probes: int | None, generator: torch.Generator | None) -> Iterator[Tensor]:
    """Random signs for each probe; without probes, the columns of the identity."""
    if probes is None:
        yield from torch.eye(like.shape[1], dtype=like.dtype, device=like.device)
    else:
        for _ in range(probes):
            yield draw_signs([like], generator)[0]


def _root(x: Tensor) -> Tensor:
    """√x for x ≥ 0, with gradient 0 and not infinity where x underflowed to 0."""
    positive = x > 0
    return torch.where(positive, x, 1.0).sqrt() * positive


def rows_by_sample(inputs: Sequence[Tensor], outputs: Tensor) -> list[tuple[Tensor, Layout | None]]:
    """The inputs of shape (…, d) that the outputs depend on, each with its layout.

    The layout is None where rows depend on several samples. The first dimension of the outputs
    holds the samples.
    """
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(outputs.shape, generator=generator, dtype=torch.float64).to(outputs)
    marks = torch.randn(len(outputs), generator=generator, dtype=torch.float64).to(outputs)
    marked_noise = noise * marks.view(-1, *[1] * (outputs.dim() - 1))
    plain, marked = (
        torch.autograd.grad(outputs, list(inputs), v, retain_graph=True, allow_unused=True)
        for v in (noise, marked_noise)
    )
    return [
        (a, _layout(of_noise, of_marked, marks))
        for a, of_noise, of_marked in zip(inputs, plain, marked, strict=True)
        if of_noise is not None and a.numel()
    ]


def split_rows(x: Tensor, layout: Layout) -> Tensor:
    """X of shape (…, d) as (N, rows of a sample, d)."""
    if math.prod(x.shape[:-1]) == layout.num_samples:
        x = x.reshape(-1, x.shape[-1])
    return layout.split(x).reshape(layout.num_samples, -1, x.shape[-1])


def _layout(plain: Tensor, marked: Tensor, marks: Tensor) -> Layout | None:
    for layout in _candidates(plain.shape, len(marks)):
        rows, expected = split_rows(plain, layout), split_rows(marked, layout)
        error = (expected - marks[:, None, None] * rows).abs()
        sizes = rows.abs().amax(dim=2, keepdim=True)
        tolerance = min(ROUND_OFF * torch.finfo(plain.dtype).eps, 0.05) * float(marks.abs().max())
        if bool((error <= tolerance * (sizes + SMALL * sizes.amax())).all()):
            return layout
    return None


def _candidates(shape: torch.Size, num_samples: int) -> Iterator[Layout]:
    """Every place that the samples may have: a dimension, or all rows together."""
    leading = shape[:-1]
    if math.prod(leading) == num_samples:  # one row each, whatever the shape
        yield Layout(0, True, num_samples)
        return
    for dim, size in enumerate(leading):
        if size and size % num_samples == 0:
            yield Layout(dim, True, num_samples)
            if size > num_samples:
                yield Layout(dim, False, num_samples)
