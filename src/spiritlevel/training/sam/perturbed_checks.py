"""Checks of what SAM and its variants are given: arguments, weights, and gradients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.optim import LBFGS, Optimizer

from ...errors import SpiritlevelError
from ...need import need, number, whole

RADIUS = "rho"  # the name of a group's own radius


def check_wrappable(name: str, optimizer: object) -> None:
    """Refuse what is not an optimizer, or does not step from one gradient."""
    need(
        "optimizer",
        optimizer,
        lambda value: isinstance(value, Optimizer),
        "a torch optimizer",
        f"Write {name}(torch.optim.SGD(model.parameters(), lr=0.1)).",
        of=name,
    )
    assert isinstance(optimizer, Optimizer)
    if isinstance(optimizer, LBFGS) or hasattr(optimizer, "perturbed"):
        kind = type(optimizer).__name__
        raise SpiritlevelError(
            f"The 'optimizer' argument of {name} must make one step from one gradient. Got {kind}, "
            "which evaluates the loss at several places itself. Use SGD, Adam or AdamW."
        )
    if RADIUS in optimizer.defaults:
        kind = type(optimizer).__name__
        raise SpiritlevelError(
            f"The 'optimizer' argument of {name} must not have its own 'rho': {name} "
            f"keeps its radius under that name. Got {kind}, which has one. Use SGD, Adam or AdamW."
        )


def check_radius(name: str, rho: Any) -> None:
    """Refuse a radius that is not a finite number of at least 0."""
    of = f"{name}, and that of each parameter group,"
    need("rho", rho, number(least=0), "a number ≥ 0", "Typical: 0.05 (SAM), 0.5 (ASAM).", of=of)


def check_count(name: str, argument: str, value: Any) -> None:
    """Refuse what is not a whole number ≥ 1."""
    need(argument, value, whole(least=1), "a whole number ≥ 1", of=name)


def check_whole(name: str, weights: Iterable[Tensor]) -> None:
    """Refuse weights of which this process holds a part only."""
    if any(type(weight).__name__ == "DTensor" for weight in weights):
        raise SpiritlevelError(
            f"{name} needs whole weights in every process, and these are sharded (FSDP). Use "
            "DistributedDataParallel."
        )


Leftovers = Mapping[int, tuple[Tensor, int]]  # by weight: its gradient, and how often it changed


def leftover_gradients(weights: Iterable[Tensor]) -> Leftovers:
    """The gradients there are before a closure runs."""
    return {id(w): (w.grad, w.grad._version) for w in weights if w.grad is not None}


def refuse_accumulated(name: str, weights: Iterable[Tensor], before: Leftovers) -> None:
    """Raise if a backward pass was added to gradients from before, which nobody had cleared.

    That changes a gradient once, in place. Clearing replaces it, or changes it once more.
    """
    for weight in weights:
        grad, version = before.get(id(weight), (None, 0))
        if grad is not None and weight.grad is grad and grad._version == version + 1:
            raise SpiritlevelError(
                f"{name}.step(closure) needs a closure that clears the gradients first, and this "
                "one added to those of other batches: the second pass would see the last batch "
                "alone. With Lightning, set accumulate_grad_batches=1 and use larger batches, or "
                "use manual optimization with `for _ in optimizer.passes():` around all batches. "
                "In a loop of your own, call optimizer.zero_grad() at the start of the closure."
            )
