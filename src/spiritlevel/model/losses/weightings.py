"""How a loss may weight its samples: what torch divides by in its different reductions."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from ..host import counting_type

# (what the loss returned, targets) -> the weight of each sample, shape (N,)
Weighting = Callable[[Tensor, Tensor], Tensor]


def by_element(losses: Tensor, targets: Tensor) -> Tensor:
    """Every value that the loss returned counts once."""
    count = losses.numel() // len(losses)
    return losses.new_full((len(losses),), count, dtype=counting_type(losses.device))


def by_sample(losses: Tensor, targets: Tensor) -> Tensor:
    """Every sample counts once."""
    return losses.new_ones(len(losses), dtype=counting_type(losses.device))


def possible_weightings(module: nn.Module) -> tuple[Weighting, ...]:
    """How a module with a `reduction` may weight its samples; a check finds out which it is."""
    plain = (by_element, by_sample)
    ignore_index = getattr(module, "ignore_index", None)
    class_weights = getattr(module, "weight", None)
    if not isinstance(ignore_index, int):
        return plain
    is_vector = isinstance(class_weights, Tensor) and class_weights.dim() == 1

    def by_class(losses: Tensor, targets: Tensor) -> Tensor:
        """The weights of the targets' classes, 0 where ignored."""
        if targets.is_floating_point():
            return by_sample(losses, targets)
        weights = (targets != ignore_index).to(counting_type(targets.device))
        if is_vector:
            assert isinstance(class_weights, Tensor)
            of_class = class_weights.detach().to(weights)
            weights = weights * of_class[targets.clamp(0, len(of_class) - 1)]
        return weights.reshape(len(targets), -1).sum(dim=1)

    return (*plain, by_class)
