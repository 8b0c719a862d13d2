"""The family bound: its cards, and what only it computes."""

from . import cards as cards
