"""SAM, ASAM and NoiseSAM, around any torch optimizer. These change training.

    optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), rho=0.05)

With a closure that clears gradients, runs forward and backward and returns the loss:

    loss = optimizer.step(closure)

Or in a loop whose body is one forward and backward pass. It runs as often as the step needs, may
sum gradients over several batches, and is where a GradScaler's scale() goes:

    for _ in optimizer.passes():            for _ in optimizer.passes():
        optimizer.zero_grad()                   optimizer.zero_grad()
        loss(model, batch).backward()           scaler.scale(loss(model, batch)).backward()
    optimizer.step()                        scaler.step(optimizer); scaler.update()

Or, for SAM and ASAM, with both passes written out:

    loss(model, batch).backward()
    with optimizer.perturbed():
        loss(model, batch).backward()
    optimizer.step()

Schedulers, checkpoints and hooks take the wrapper as the optimizer it is. A group may have its own
radius ("rho" beside "lr"). Dropout draws a new mask in each pass. Running statistics of BatchNorm
change once per step, in the modules called in the first displaced pass. Pass `model=` if that
misses some: if a function given to torch.compile calls the model, or another model joins later.

With DistributedDataParallel the gradients, and so the displacements, are equal in all processes. A
first pass under `no_sync()` gives each process its own displacement (m-SAM, and less traffic); the
weights stay equal nevertheless.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...ground.need import need, number, one_of
from .perturbation import Block, Displacement, climb_, draw_in_ball
from .perturbed_optimizer import AbstractPerturbedOptimizer


class SAM(AbstractPerturbedOptimizer):
    """Sharpness-aware minimization: steps with ∇L(w + ρ g/‖g‖), g = ∇L(w). Two passes per step.

    Foret et al. 2021 (arXiv 2010.01412). `every=k` does so on one step in k and is the plain
    optimizer on the others. ‖g‖ is that of all weights together; groups with different radii ρ_i
    share the ellipsoid Σ ‖ε_i/ρ_i‖² ≤ 1, so that ε_i = ρ_i² g_i / √(Σ ρ_j²‖g_j‖²). Memory: one more
    copy of the weights.

    >>> w = torch.nn.Parameter(torch.tensor([3.0]))           # L = w²/2, so ∇L(w + ρ) = w + ρ
    >>> optimizer = SAM(torch.optim.SGD([w], lr=1.0), rho=0.5)
    >>> for _ in optimizer.passes():
    ...     w.square().sum().div(2).backward()
    >>> optimizer.step()
    >>> w.item()
    -0.5
    """

    def __init__(
        self,
        optimizer: Optimizer,
        rho: float = 0.05,
        *,
        every: int = 1,
        model: nn.Module | None = None,
    ) -> None:
        super().__init__(optimizer, rho, every=every, model=model, gradient_first=True)

    def _displacement(self, blocks: list[Block]) -> Displacement:
        return climb_([block.radius for block in blocks], _gradients(blocks))


class ASAM(AbstractPerturbedOptimizer):
    """Adaptive SAM: steps with ∇L(w + ρ T²g/‖Tg‖), T = |w| + η, so that large weights move more.

    Kwon et al. 2021 (arXiv 2102.11600). `adaptive_bias` has no default because it moves the best
    ρ: with False, as in the paper, parameters of one dimension (biases, and scales of norm layers,
    which the authors' code treats as weights) have T = 1; with True they have T = |w| + η as well,
    and a larger ρ (2 where 0.5 was best) is called for.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        rho: float = 0.5,
        *,
        eta: float = 0.01,
        adaptive_bias: bool,
        every: int = 1,
        model: nn.Module | None = None,
    ) -> None:
        need("eta", eta, number(least=0), "a number ≥ 0", "Typical: 0.01.", of="ASAM")
        super().__init__(optimizer, rho, every=every, model=model, gradient_first=True)
        self.eta, self.adaptive_bias = eta, adaptive_bias

    def _displacement(self, blocks: list[Block]) -> Displacement:
        sizes = [[self._size(weight) for weight in block.weights] for block in blocks]
        return climb_([block.radius for block in blocks], _gradients(blocks), sizes)

    def _size(self, weight: Tensor) -> Tensor:
        if weight.ndim > 1 or self.adaptive_bias:
            return weight.detach().abs().add_(self.eta)
        return torch.ones_like(weight)


class NoiseSAM(AbstractPerturbedOptimizer):
    """Isotropic SAM: steps with the mean of ∇L(w + ε) over `draws` of ε. One pass per draw.

    Paper 001, A.6. ε is uniform *in the ball* ‖ε‖ ≤ ρ of all weights together: with d weights its
    length is ρ·u^(1/d), in a network almost ρ. No gradient at w is needed, so one draw costs a
    plain step. Statistics of BatchNorm are those of the first draw. `generator` (torch's global one
    if None) is part of the state dict.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        rho: float = 0.05,
        *,
        draws: int = 1,
        generator: torch.Generator | None = None,
        every: int = 1,
        model: nn.Module | None = None,
    ) -> None:
        super().__init__(
            optimizer,
            rho,
            every=every,
            draws=draws,
            generator=generator,
            model=model,
            gradient_first=False,
        )

    def _displacement(self, blocks: list[Block]) -> Displacement:
        return draw_in_ball(blocks, self._generator)


def build_perturbed(
    method: str,
    optimizer: Optimizer,
    rho: float,
    *,
    draws: int = 1,
    generator: torch.Generator | None = None,
    every: int = 1,
    model: nn.Module | None = None,
) -> AbstractPerturbedOptimizer | None:
    """The wrapper that a study calls "sam", "asam" or "noise_sam"; None for "plain" steps.

    `draws` and `generator` are those of NoiseSAM; ASAM is that of its paper.

    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=1.0)
    >>> type(build_perturbed("asam", optimizer, 0.5)).__name__
    'ASAM'
    """
    makers: dict[str, Callable[..., AbstractPerturbedOptimizer] | None] = {
        "plain": None,
        "sam": SAM,
        "asam": functools.partial(ASAM, adaptive_bias=False),
        "noise_sam": functools.partial(NoiseSAM, draws=draws, generator=generator),
    }
    known = f"one of {', '.join(makers)}"
    make = makers[need("method", method, one_of(makers), known, of="build_perturbed")]
    return None if make is None else make(optimizer, rho, every=every, model=model)


def _gradients(blocks: list[Block]) -> list[list[Tensor]]:
    return [[w.grad for w in block.weights if w.grad is not None] for block in blocks]
