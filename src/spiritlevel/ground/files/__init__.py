"""Files: written completely or not at all, read without running or unpacking what is too much."""

from .writing import is_plain, own_folder, remove_leftovers, write_atomically

__all__ = ["is_plain", "own_folder", "remove_leftovers", "write_atomically"]
