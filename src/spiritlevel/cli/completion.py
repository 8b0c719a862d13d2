"""Shell completion for the names of measures, models and data sets.

If nothing matches, the shell completes file names as usual.
"""

from __future__ import annotations

Offers = list[tuple[str, str]]  # a name, and what it is


def measures(incomplete: str) -> Offers:
    """Measures that start with `incomplete`."""
    from ..verbs import measuring as api

    return beginning(incomplete, [(card.name, card.summary) for card in api.cards()])


def model_names(incomplete: str) -> Offers:
    """Built-in networks that start with `incomplete`."""
    from ..inputs import models

    return beginning(incomplete, [(name, "built in") for name in models.names()])


def data_names(incomplete: str) -> Offers:
    """Data sets that --data accepts by name."""
    embedded = ("digits", "1,797 handwritten digits, embedded")
    return beginning(incomplete, [embedded, *fetchable("")])


def fetchable(incomplete: str) -> Offers:
    """Data sets that `spiritlevel data fetch` can download."""
    from ..inputs.data import CATALOGUE

    return beginning(incomplete, [(name, entry.summary) for name, entry in CATALOGUE.items()])


def beginning(incomplete: str, offers: Offers) -> Offers:
    """The offers whose name starts with what was typed."""
    return [(name, text) for name, text in offers if name.startswith(incomplete)]
