"""The family sharpness: its cards, and what only it computes."""

from . import cards as cards
