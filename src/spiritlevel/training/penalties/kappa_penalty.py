"""Relative flatness κ of one linear layer inside the network, as a penalty.

κ = mean_n Σ_k σ_k ‖a_n‖² ‖∂(s_k·z_n)/∂a_n‖², with a the layer's input and s_k the columns of the
output curvature, ∇²_z ℓ = Σ_k σ_k s_k s_kᵀ: one backward pass per column, or one per probe, which
is a sum of all columns with random signs and unbiased. Where the outputs are piecewise linear in
the layer's weight (ReLU networks) this is κ of the Hessian. Where they are not (GELU, attention
above the layer) it is κ of the Gauss-Newton matrix, without the curvature of the network itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ...errors import SpiritlevelError
from ...math.curvature import DiagonalCurvature
from ...math.positions import OutputCurvature
from ...model.losses import resolve, total_weight
from .argument_checks import check_labels, check_probes, check_trained
from .differentiable_curvature import differentiable_curvature
from .forward_recorder import ForwardRecorder
from .penalized_layer import find_layer, take_layer_call
from .penalty import Penalty
from .penalty_batch import PenaltyBatch
from .random_signs import draw_signs
from .separate_forward import AnyLoss


def kappa_penalty(
    inputs: Tensor,
    outputs: Tensor,
    targets: Tensor,
    *,
    loss: AnyLoss = "cross_entropy",
    probes: int | None = 1,
    generator: torch.Generator | None = None,
) -> Tensor:
    """κ of the linear layer that `inputs` went into on the way to `outputs`.

    `inputs` must be in the graph of `outputs`, and go into that layer alone: pass `a.view_as(a)` to
    the layer where a is used elsewhere too. Inputs of shape (N, T, d) are T uses of the weight.
    `probes=None` takes all columns: C − 1 backward passes for cross-entropy, no randomness.
    """
    if probes is not None:
        check_probes(probes)
    loss_function = resolve(loss)
    targets, _ = check_labels(loss_function, outputs, targets)
    curvature = differentiable_curvature(loss_function, outputs, targets)
    a = inputs.reshape(len(inputs), -1, inputs.shape[-1])  # (N, T, d)
    total = outputs.new_zeros(())
    for column in _columns(curvature, outputs, probes, generator):
        (signal,) = torch.autograd.grad(
            outputs, inputs, column.view_as(outputs), create_graph=True, allow_unused=True
        )
        if signal is None:
            raise SpiritlevelError(
                "The 'outputs' of a κ penalty must come from the forward pass in which the layer "
                "was used. Got outputs that do not depend on its latest input. Call the penalty "
                "right after the forward pass, with what the model returned."
            )
        b = signal.reshape(a.shape)
        # ‖Σ_t b_t a_tᵀ‖² by the Gram matrices of the uses
        total = total + ((a @ a.mT) * (b @ b.mT)).sum()
    weight = total_weight(loss_function, outputs, targets)
    return total / (weight * (1 if probes is None else probes))


class KappaPenalty(Penalty):
    """weight · κ of a chosen linear layer.

    Called like every `Penalty`. `layer` is the path of the layer; one that the model calls several
    times is seen at its last call. `probes` is the number of random sums of columns; None takes all
    columns, without randomness.
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
        self._layer_recorder = ForwardRecorder(self._module, separate_input=True)

    def compute(self, batch: PenaltyBatch) -> Tensor:
        """κ of the batch, or an unbiased estimate of it."""
        layer_input, _ = take_layer_call(self._layer_recorder, self.layer)
        check_trained(self.layer, self._module)
        return kappa_penalty(
            layer_input,
            batch.outputs,
            batch.targets,
            loss=self.loss,
            probes=self.probes,
            generator=self.generator,
        )

    def around_forward(self) -> contextlib.AbstractContextManager[None]:
        """κ needs the input of the layer."""
        return self._layer_recorder


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
