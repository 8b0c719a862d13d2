"""Shell completion for the names of measures, models, data sets and studies.

If nothing matches, the shell completes file names as usual.
"""

from __future__ import annotations

from spiritlevel_lab.population.registry import study_names

from ..inputs import models
from ..inputs.data import CATALOGUE
from ..verbs import measuring as api

Offers = list[tuple[str, str]]  # a name, and what it is


def measures(incomplete: str) -> Offers:
    """Measures that start with `incomplete`."""
    return _beginning(incomplete, [(card.name, card.summary) for card in api.cards()])


def model_names(incomplete: str) -> Offers:
    """Built-in networks that start with `incomplete`."""
    return _beginning(incomplete, [(name, "built in") for name in models.names()])


def data_names(incomplete: str) -> Offers:
    """Data sets that --data accepts by name."""
    embedded = ("digits", "1,797 handwritten digits, embedded")
    return _beginning(incomplete, [embedded, *fetchable("")])


def fetchable(incomplete: str) -> Offers:
    """Data sets that `spiritlevel data fetch` can download."""
    return _beginning(incomplete, [(name, entry.summary) for name, entry in CATALOGUE.items()])


def studies(incomplete: str) -> Offers:
    """Registered studies that start with `incomplete`."""
    return _beginning(incomplete, [(name, "built in") for name in study_names()])


def _beginning(incomplete: str, offers: Offers) -> Offers:
    return [(name, text) for name, text in offers if name.startswith(incomplete)]
