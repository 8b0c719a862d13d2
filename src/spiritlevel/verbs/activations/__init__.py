"""The curvature of the loss in a layer's outputs: for activation quantization and importance."""

from .measuring import activation_curvature
from .record import ActivationCurvature

__all__ = ["ActivationCurvature", "activation_curvature"]
