"""The section `interventions` of a study: what is done on purpose, and how strongly."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from ...errors import SpiritlevelError
from .keys import (
    SettingsSection,
    as_mapping,
    count,
    number,
    one_of,
    read_section,
    text,
)

COMPANIONS = {  # keys that mean something only with another one
    "label_noise_kind": "label_noise",
    "leakage_patches": "leakage",
    "leakage_size": "leakage",
    "mask_layers": "mask",
    "mask_place": "mask",
    "bias_layer": "bias_shift",
}


def _strength() -> Any:
    return number(float, 0.0, "a number of at least 0, or false", lambda v: v >= 0)


def _pixels() -> Any:
    # A float although it is whole: the ids of older runs were made with 4.0.
    need = "a whole number of pixels of at least 0, or false"
    return number(float, 0.0, need, lambda v: v >= 0 and v.is_integer())


@dataclasses.dataclass(frozen=True)
class InterventionSettings(SettingsSection):
    """Changes to labels, inputs, batches, steps and the network; by default none."""

    label_noise: float = _strength()
    label_noise_kind: str = one_of("replace", "shuffle", default="replace")
    leakage: str | None = one_of("class", "control", default=None)
    leakage_patches: str | None = text("the name or path of the images the patches are made of")
    leakage_size: int | None = count()
    crop_flip: float = _pixels()
    crop: float = _pixels()
    auto_augment: str | None = text("the name of a policy, or false")
    input_noise: float = _strength()
    mixup: float = _strength()
    mask: float = number(float, 0.0, "a number from 0 to below 1, or false", lambda v: 0 <= v < 1)
    mask_layers: str | None = text("a name or pattern of layers")
    mask_place: str = one_of("convolution", "norm", default="convolution")
    bias_shift: float = number(float, 0.0, "a number, or false", math.isfinite)
    bias_layer: str | None = text("the name of a layer")
    batch_cycles: int = count(1, "a whole number of at least 1, or false")

    @classmethod
    def read(cls, given: object) -> InterventionSettings:
        """Check every strength; 0 or false is the same as leaving the key out."""
        section = as_mapping("interventions", given)
        # 0 == False in Python: both switch an intervention off.
        switched_on = {key: None if value == 0 else value for key, value in section.items()}
        _, values = read_section("interventions", switched_on, cls)
        for key, main in COMPANIONS.items():
            if values.get(key, getattr(cls, key)) != getattr(cls, key) and main not in section:
                raise SpiritlevelError(
                    f"The study's interventions.{key} has no effect without interventions.{main}. "
                    f"Add {main}, or leave {key} out."
                )
            if main not in values:
                values.pop(key, None)
        if {"mask_layers", "mask_place"} <= set(values):
            raise SpiritlevelError(
                "The study's interventions.mask_place chooses the layers, and so does "
                "interventions.mask_layers. Leave one out."
            )
        if {"crop", "crop_flip"} <= set(values):
            raise SpiritlevelError(
                "The study's interventions.crop moves images as interventions.crop_flip does, "
                f"which mirrors them too. Got both, {values['crop']:g} and "
                f"{values['crop_flip']:g}: leave one out."
            )
        return cls(**values)
