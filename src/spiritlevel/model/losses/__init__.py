"""Losses: one value per sample, and the Hessian of that value in the outputs.

Every loss is reduced as torch reduces it with `reduction="mean"`: L = Σ_n ℓ_n / Σ_n weight_n. For a
sample with one prediction per position (a token, a pixel) both sums run over its positions, so that
positions and not samples are averaged. Class weights, ignored targets and masks enter both sums. A
loss whose own mean is another one is refused.
"""

from .callable_loss import CallableLoss as CallableLoss
from .common_shift import common_shift as common_shift
from .cross_entropy import CrossEntropy as CrossEntropy
from .elementwise import BinaryCrossEntropy as BinaryCrossEntropy
from .elementwise import MeanSquaredError as MeanSquaredError
from .negative_log_likelihood import NegativeLogLikelihood as NegativeLogLikelihood
from .protocol import Loss as Loss
from .protocol import as_mask as as_mask
from .protocol import total_weight as total_weight
from .resolve import AnyLoss as AnyLoss
from .resolve import resolve as resolve
