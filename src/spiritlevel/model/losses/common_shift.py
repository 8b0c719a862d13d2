"""What a loss does not see of its outputs: a number that is added to all classes alike."""

from __future__ import annotations

import torch
from torch import Tensor

from .protocol import Loss

_ROUND_OFF = 1e-9  # relative, of losses in float64
_DRAWS = 3


def common_shift(loss: Loss, outputs: Tensor, targets: Tensor) -> int | None:
    """The dimension along which one number can be added to all outputs; None if there is none.

    Of each position by itself, as a softmax has it. A loss that does not follow its outputs at all
    on this data shows nothing.

    >>> from spiritlevel.model.losses import CrossEntropy, MeanSquaredError
    >>> z, y = torch.zeros(2, 3), torch.tensor([0, 2])
    >>> common_shift(CrossEntropy(), z, y), common_shift(MeanSquaredError(), z, torch.zeros(2, 3))
    (1, None)
    """
    generator = torch.Generator().manual_seed(0)
    wide = outputs.detach().double()

    def changed(shape: list[int]) -> bool:
        """Whether random numbers of this shape, added to the outputs, change some loss."""
        draws = torch.randn(_DRAWS, *shape, generator=generator, dtype=torch.float64).to(wide)
        before = loss.values(wide, targets)
        size = float(before.abs().max().clamp(min=1.0))
        return any(
            float((loss.values(wide + draw, targets) - before).abs().max()) > _ROUND_OFF * size
            for draw in draws
        )

    shape = list(wide.shape)
    if not wide.numel() or not changed(shape):
        return None
    for dim in range(1, len(shape)):
        alike = [1 if other == dim else size for other, size in enumerate(shape)]
        if shape[dim] > 1 and not changed(alike):
            return dim
    return None
