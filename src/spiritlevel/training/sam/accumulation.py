"""Gradients that a closure adds to: SAM would step with those of the last batch alone.

With `accumulate_grad_batches` Lightning calls `step` with a closure for the last of several batches
and counts on the gradients of the others, which SAM has to clear before its second pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

from ...ground.errors import SpiritlevelError

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
