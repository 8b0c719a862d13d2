"""The family pac_bayes: its cards, and what only it computes."""

from . import cards as cards
