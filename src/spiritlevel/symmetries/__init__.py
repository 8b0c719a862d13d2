"""Moves that change a network's parameters, or how its data is cut, but not its function.

`find_moves` finds them in a user's network by running it. A number that moves under one of these
says something about the parameters and nothing about the function; such numbers cannot be compared
between networks.
"""

from __future__ import annotations

from .logit_size import temperature_move
from .moves import BOTH, DOWN, UP, Group, Move, Role, Site
from .named_layers import permute_units, rescale_layers, rescale_neurons
from .names import CONFIDENCE_ONLY, FUNCTION_PRESERVING, MOVES, SYMMETRIES
from .search import FoundMoves, find_moves

__all__ = [
    "BOTH",
    "CONFIDENCE_ONLY",
    "DOWN",
    "FUNCTION_PRESERVING",
    "MOVES",
    "SYMMETRIES",
    "UP",
    "FoundMoves",
    "Group",
    "Move",
    "Role",
    "Site",
    "find_moves",
    "permute_units",
    "rescale_layers",
    "rescale_neurons",
    "temperature_move",
]
