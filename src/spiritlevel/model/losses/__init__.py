"""Losses: one value per sample, and the Hessian of that value in the outputs.

Every loss is reduced as torch reduces it with `reduction="mean"`: L = Σ_n ℓ_n / Σ_n weight_n. For a
sample with one prediction per position (a token, a pixel) both sums run over its positions, so that
positions and not samples are averaged. Class weights, ignored targets and masks enter both sums.
"""

from .callable_loss import CallableLoss as CallableLoss
from .cross_entropy import CrossEntropy as CrossEntropy
from .elementwise import BinaryCrossEntropy as BinaryCrossEntropy
from .elementwise import MeanSquaredError as MeanSquaredError
from .protocol import Loss as Loss
from .protocol import as_mask as as_mask
from .resolve import resolve as resolve
