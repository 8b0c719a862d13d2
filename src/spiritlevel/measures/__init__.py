"""The catalogue: one file a family, one function and one card a measure."""

from . import (
    activity,
    bound,
    curvature,
    decomposition,
    head,
    neuron,
    norms,
    pac_bayes,
    relative,
    scaled,
    sensitivity,
    sharpness,
    softmax,
)
from ._registry import WAYS as WAYS
from ._registry import Card as Card
from ._registry import Measured as Measured
from ._registry import get as get
from ._registry import measure as measure
from ._registry import names as names

FAMILIES = (
    activity,
    bound,
    curvature,
    decomposition,
    head,
    neuron,
    norms,
    pac_bayes,
    relative,
    scaled,
    sensitivity,
    sharpness,
    softmax,
)
