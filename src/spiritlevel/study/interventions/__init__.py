"""What the papers do to data and networks on purpose, to see which measures notice.

Everything random takes a `torch.Generator`, draws from it alone, and changes nothing it is given:
tensors and networks come back as new ones.
"""

from __future__ import annotations

from .augmentation import Augmentation, crop_flip, mixup
from .auto_augment import auto_augment
from .bias import bias_shift
from .input_noise import input_noise
from .label_noise import label_noise
from .leakage import class_patches, control_patch, leakage_patch
from .masking import MaskedFeatures, mask_feature_maps

__all__ = [
    "Augmentation",
    "MaskedFeatures",
    "auto_augment",
    "bias_shift",
    "class_patches",
    "control_patch",
    "crop_flip",
    "input_noise",
    "label_noise",
    "leakage_patch",
    "mask_feature_maps",
    "mixup",
]
