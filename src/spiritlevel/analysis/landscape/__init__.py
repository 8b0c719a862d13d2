"""The loss along lines and planes through a network's weights."""

from .record import Axis as Axis
from .record import Landscape as Landscape
from .record import Mark as Mark
from .slices import landscape as landscape
from .slices import num_points as num_points
