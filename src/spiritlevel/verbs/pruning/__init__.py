"""Which neurons and channels can go: the rise of the loss from deleting them, and masks."""

from .measuring import pruning
from .records import Deletion, Pruning

__all__ = ["Deletion", "Pruning", "pruning"]
