"""How many bits each weight needs: the rise of the loss from rounding it, and the best plan."""

from .measuring import quantization
from .records import Plan, Quantization, Width
from .rounding import Rounding

__all__ = ["Plan", "Quantization", "Rounding", "Width", "quantization"]
