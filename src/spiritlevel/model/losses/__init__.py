"""Losses: one value a sample, and the Hessian of that value in the outputs.

Every loss is reduced as torch reduces it with `reduction="mean"`: L = Σ_n ℓ_n / Σ_n weight_n. A
sample with one prediction a position (a token, a pixel) adds up its positions in both sums, so that
positions and not samples are averaged; class weights and what is ignored or masked enter the same
way.
"""

from .callable_loss import CallableLoss as CallableLoss
from .cross_entropy import CrossEntropy as CrossEntropy
from .elementwise import BinaryCrossEntropy as BinaryCrossEntropy
from .elementwise import MeanSquaredError as MeanSquaredError
from .protocol import Loss as Loss
from .protocol import as_mask as as_mask
from .resolve import resolve as resolve
