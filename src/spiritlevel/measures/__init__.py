"""The catalogue: one file a family, one function and one card a measure."""

from . import curvature, head, neuron, relative, scaled, softmax
from ._registry import Card as Card
from ._registry import Measured as Measured
from ._registry import get as get
from ._registry import measure as measure
from ._registry import names as names

FAMILIES = (curvature, head, neuron, relative, scaled, softmax)
