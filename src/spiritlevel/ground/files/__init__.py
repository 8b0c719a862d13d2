"""Files: written completely or not at all, read without running or unpacking what is too much."""

from .writing import remove_leftovers, write_atomically

__all__ = ["remove_leftovers", "write_atomically"]
