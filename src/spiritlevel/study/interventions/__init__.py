"""What the papers change on purpose in data and networks, to see which measures notice.

Everything random draws from a `torch.Generator` that is given to it. Nothing is changed in place:
tensors and networks come back as new ones.
"""

from __future__ import annotations

from .augmentation import Augmentation, crop_flip, mixup
from .auto_augment import auto_augment
from .data_changes import class_patches, control_patch, input_noise, label_noise, leakage_patch
from .network_changes import MaskedFeatures, bias_shift, mask_feature_maps

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
