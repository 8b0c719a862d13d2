"""Relative flatness κ of one linear layer inside the network, as a penalty.

κ = mean_n Σ_k σ_k ‖a_n‖² ‖∂(s_k·z_n)/∂a_n‖², with a the layer's input and s_k the columns of the
output curvature, ∇²_z ℓ = Σ_k σ_k s_k s_kᵀ: one backward a column; or one a probe, which is a sum
of all columns with random signs and right on average. Where the outputs are piecewise linear in the
layer's weight (ReLU networks) this is κ of the Hessian. Where they are not (GELU, attention above
the layer) it is κ of the Gauss-Newton matrix, without the curvature of the network itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import SpiritlevelError
from ...math.curvature import DiagonalCurvature
from ...math.positions import OutputCurvature
from ...model.distributed import refuse_sharded, unwrapped
from ...model.losses import Loss, resolve
from .arguments import check_probes, check_trained, check_weight, find_layer
from .gap_softmax import check_outputs, differentiable_curvature
from .layer_input import LayerTap
from .lazy import LazySchedule
from .signs import draw_signs
from .trace_squared import AnyLoss


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
    `probes=None` takes all columns: C − 1 backwards for cross-entropy, and no randomness.
    """
    if probes is not None:
        check_probes(probes)
    found = resolve(loss)
    targets = check_outputs(found, outputs, targets)
    curvature = differentiable_curvature(found, outputs, targets)
    a = inputs.reshape(len(inputs), -1, inputs.shape[-1])  # (N, T, d)
    total = outputs.new_zeros(())
    for column in _columns(curvature, outputs, probes, generator):
        (signal,) = torch.autograd.grad(
            outputs, inputs, column.view_as(outputs), create_graph=True, allow_unused=True
        )
        if signal is None:
            raise SpiritlevelError(
                "The 'outputs' of a κ penalty must come from the forward in which the layer was "
                "used. Got outputs that do not depend on its latest input. Call the penalty right "
                "after the forward, with what the model returned."
            )
        b = signal.reshape(a.shape)
        # ‖Σ_t b_t a_tᵀ‖² by the Gram matrices of the uses
        total = total + ((a @ a.mT) * (b @ b.mT)).sum()
    weights = found.weights(outputs.detach(), targets).sum()
    return total / (weights * (1 if probes is None else probes))


class KappaPenalty:
    """weight · κ of a chosen linear layer.

        penalty = KappaPenalty(model, "fc1", weight=0.01)
        outputs = model(x)
        loss = F.cross_entropy(outputs, y) + penalty(outputs, y)

    The layer's input is taken by a hook in the forward that gave `outputs`; `remove` takes it away,
    and so does leaving a `with KappaPenalty(...) as penalty:` block. A layer that the model calls
    several times is seen at its last call. `every=k` as in FlatnessPenalty.
    """

    def __init__(
        self,
        model: nn.Module,
        layer: str,
        weight: float = 0.01,
        *,
        probes: int | None = 1,
        every: int = 1,
        loss: AnyLoss = "cross_entropy",
        generator: torch.Generator | None = None,
    ) -> None:
        """`value` holds κ as last measured, without weight and `every`."""
        refuse_sharded(model)
        self.layer = layer
        self.weight = check_weight(weight)
        self.probes = None if probes is None else check_probes(probes)
        self.loss: Loss = resolve(loss)
        self.generator = generator or torch.Generator().manual_seed(torch.initial_seed())
        self._schedule = LazySchedule(every)
        self._module = find_layer(unwrapped(model), layer, (nn.Linear,))
        self._tap = LayerTap(layer, self._module, differentiable=True)
        self.value: Tensor | None = None

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The penalty of the batch whose outputs these are."""
        passed = self._tap.take()
        if not self._schedule.factor:
            self._schedule.advance()
            return outputs.new_zeros(())
        check_trained(self.layer, self._module)
        found = kappa_penalty(
            passed.input,
            outputs,
            targets,
            loss=self.loss,
            probes=self.probes,
            generator=self.generator,
        )
        self.value = found.detach()
        return self._schedule.advance() * self.weight * found

    def state_dict(self) -> dict[str, Any]:
        """What a training that goes on from a checkpoint needs."""
        return {"steps": self._schedule.steps, "generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.generator.set_state(state["generator"].cpu())
        self._schedule.steps = int(state["steps"])

    def remove(self) -> None:
        """Take the hook away; the penalty cannot be called any more."""
        self._tap.remove()

    def __enter__(self) -> KappaPenalty:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()


def _columns(
    curvature: OutputCurvature,
    outputs: Tensor,
    probes: int | None,
    generator: torch.Generator | None,
) -> Iterator[Tensor]:
    """Columns whose outer products add up to ∇²ℓ, all of them or a random sum a probe."""
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
    """Random signs a probe; without probes one column of the identity after the other."""
    if probes is None:
        yield from torch.eye(like.shape[1], dtype=like.dtype, device=like.device)
    else:
        for _ in range(probes):
            yield draw_signs([like], generator)[0]


def _root(x: Tensor) -> Tensor:
    """√x for x ≥ 0, with gradient 0 and not infinity where x underflowed to 0."""
    there = x > 0
    return torch.where(there, x, 1.0).sqrt() * there
