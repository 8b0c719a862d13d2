"""Moves that change a network's parameters, or how its data is cut, but not its function.

`find_moves` finds them in a user's network by running it. A number that moves under one of these
says something about the parameters and nothing about the function; such numbers cannot be compared
between networks.
"""

from __future__ import annotations

from .logit_size import temperature_move as temperature_move
from .moves import BOTH as BOTH
from .moves import DOWN as DOWN
from .moves import UP as UP
from .moves import Group as Group
from .moves import Move as Move
from .moves import Role as Role
from .moves import Site as Site
from .named_layers import permute_units as permute_units
from .named_layers import rescale_layers as rescale_layers
from .named_layers import rescale_neurons as rescale_neurons
from .names import CONFIDENCE_ONLY as CONFIDENCE_ONLY
from .names import FUNCTION_PRESERVING as FUNCTION_PRESERVING
from .names import MOVES as MOVES
from .names import SYMMETRIES as SYMMETRIES
from .search import FoundMoves as FoundMoves
from .search import find_moves as find_moves
