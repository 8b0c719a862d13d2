"""The penalty of paper 004, Tr(H²)/B.

H is the Hessian of the batch's mean loss, B the batch size: E‖Hv‖² = Tr(H²) for random signs v. One
direction takes the gradient, a second backward pass for Hv, and a third in the backward pass of the
training step: about 3.5 training steps for a multilayer perceptron, 6 for a convolutional network,
if the forward pass is shared with the training loss (`trace_squared_of`). In float32 or float64.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...ground.errors import SpiritlevelError
from ...model.autograd_graph import lacks_second_derivative
from ...model.batches import num_samples
from ...model.distributed import refuse_sharded, unwrapped
from ...model.forwards import scores
from ...model.losses import AnyLoss, resolve
from ...model.parameters import select_parameters
from .argument_checks import check_batch_size, check_loss_value, check_probes
from .penalty import Penalty
from .penalty_batch import PenaltyBatch, mean_loss, separate_forward
from .random_signs import draw_signs, restored_on_failure
from .third_derivatives import check_graph, thrice_differentiable
from .weight_gradients import deferred


class FlatnessPenalty(Penalty):
    """weight · Tr(H²)/B with the Hessian H of the batch's mean loss and the batch size B.

    Called like every `Penalty`. It works for any loss and any layers; `layers` (module paths or
    patterns) restricts H to their parameters, and `probes` is the number of random directions of
    the estimate.
    """

    def __init__(
        self,
        model: nn.Module,
        weight: float = 0.01,
        *,
        probes: int = 1,
        every: int = 1,
        layers: str | Sequence[str] | None = None,
        loss: AnyLoss = "cross_entropy",
        generator: torch.Generator | None = None,
    ) -> None:
        """`every`, `loss` and `generator` as in Penalty."""
        super().__init__(model, weight, every=every, loss=loss, generator=generator)
        self.probes = check_probes(probes)
        self.layers = layers
        select_parameters(self.model, layers)  # refuses now what would fail at the first step

    def compute(self, batch: PenaltyBatch) -> Tensor:
        """An unbiased estimate of Tr(H²)/B."""
        return trace_squared_of(
            batch.loss,
            select_parameters(self.model, self.layers).values(),
            batch.size,
            probes=self.probes,
            generator=self.generator,
            create_graph=self.weight > 0,
        )

    def around_forward(self) -> contextlib.AbstractContextManager[None]:
        """A forward pass that the training step can differentiate three times."""
        return thrice_differentiable()


def trace_squared_penalty(
    model: nn.Module,
    x: Any,
    y: Tensor,
    *,
    loss: AnyLoss = "cross_entropy",
    probes: int = 1,
    layers: str | Sequence[str] | None = None,
    generator: torch.Generator | None = None,
    parameters: Iterable[Tensor] | None = None,
) -> Tensor:
    """An unbiased estimate of Tr(H²)/B of a batch; gradients flow into all parameters.

    It runs the model once more, in the mode it is in: batch statistics of BatchNorm are part of the
    function, its running statistics are not touched, and dropout draws its own mask without moving
    torch's random state. To avoid the second forward pass, or to use the mask of the training loss,
    use `trace_squared_of`.

    Args:
        x: the model's input, or a dict or tuple of its inputs.
        loss: as for `measure`; averaged over the batch.
        probes: random directions to average over.
        layers: module paths or patterns; H is then the block of their parameters.
        generator: of the directions; None: torch's global one.
        parameters: the tensors that H is in, in place of `layers`.
    """
    check_probes(probes)
    refuse_sharded(model)
    model = unwrapped(model)
    chosen = _choose(model, layers, parameters)
    batch_size = check_batch_size(num_samples((x, y)))
    outputs = scores(separate_forward(model, x, thrice_differentiable()))
    with thrice_differentiable():
        value = mean_loss(resolve(loss, model), outputs, y)
    return trace_squared_of(value, chosen, batch_size, probes=probes, generator=generator)


def trace_squared_of(
    loss: Tensor,
    parameters: Iterable[Tensor],
    batch_size: int,
    *,
    probes: int = 1,
    generator: torch.Generator | None = None,
    create_graph: bool = True,
) -> Tensor:
    """Tr(H²)/B from a loss that is already computed: the batch goes through the model once.

    Compute the loss inside `with thrice_differentiable():`. A network with LayerNorm, BatchNorm in
    train mode or attention needs it, and one with convolutions is faster with it.
    `create_graph=False` gives the number alone, for the price of Hv.

    >>> w = torch.tensor([3.0, 5.0], requires_grad=True)
    >>> loss = (w**2 * torch.tensor([1.0, 2.0])).sum()              # H = diag(2, 4)
    >>> float(trace_squared_of(loss, [w], batch_size=1).detach())   # 2² + 4²
    20.0
    """
    check_probes(probes)
    check_batch_size(batch_size)
    check_loss_value(loss)
    chosen = _check_parameters(parameters)
    functions = check_graph(loss, third=create_graph)
    with _explained(), restored_on_failure(generator):
        with deferred(functions):  # of the gradients only the graph is used
            gradients = torch.autograd.grad(loss, chosen, create_graph=True, allow_unused=True)
        if lacks_second_derivative(gradients):
            raise RuntimeError("a function on the way is marked as differentiable only once")
        curved = [g is not None and g.requires_grad for g in gradients]
        if not any(curved):  # a loss linear in these parameters
            return loss.detach().new_zeros(()).requires_grad_(create_graph)
        total = loss.new_zeros(())
        for _ in range(probes):
            signs = draw_signs(chosen, generator)
            products = torch.autograd.grad(
                [g for g, bent in zip(gradients, curved, strict=True) if bent],
                chosen,
                [v for v, bent in zip(signs, curved, strict=True) if bent],
                create_graph=create_graph,
                retain_graph=True,  # the loss is still to be differentiated by the training step
                allow_unused=True,
            )
            for product in products:
                if product is not None:
                    flat = product.flatten()
                    total = total + flat @ flat
    return total / (probes * batch_size)


def _choose(
    model: nn.Module, layers: str | Sequence[str] | None, parameters: Iterable[Tensor] | None
) -> list[Tensor]:
    if parameters is None:
        return list(select_parameters(model, layers).values())
    if layers is not None:
        raise SpiritlevelError(
            "The penalty takes 'layers' or 'parameters', not both. "
            f"Got layers={layers!r} and parameters. Leave one of them out."
        )
    return list(parameters)


def _check_parameters(parameters: Iterable[Tensor]) -> list[Tensor]:
    chosen = list(parameters)
    frozen = [index for index, tensor in enumerate(chosen) if not tensor.requires_grad]
    if not chosen or frozen:
        got = f"number {frozen[0]} of them frozen" if frozen else "none"
        raise SpiritlevelError(
            "The 'parameters' of the penalty must be tensors with requires_grad=True, at least "
            f"one. Got {got}. Pass [p for p in model.parameters() if p.requires_grad]."
        )
    return chosen


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Adds what to do to the errors that torch raises when a derivative is missing."""
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise SpiritlevelError(
            "The loss must have a second derivative in the parameters. Differentiating it failed "
            f"with: {error}. Compute the loss inside `with thrice_differentiable():`, which "
            "writes attention out, without torch.compile, and before loss.backward()."
        ) from error
