"""What the shell offers after a Tab: names of measures, models, data and studies.

A file or a name of the user's own is completed by the shell where nothing here begins like it.
"""

from __future__ import annotations

from .. import api
from ..study import models
from ..study.data import CATALOGUE
from ..study.registry import study_names

Offers = list[tuple[str, str]]  # a name, and what it is


def measures(incomplete: str) -> Offers:
    """Measures that begin like this."""
    return _beginning(incomplete, [(card.name, card.summary) for card in api.measures()])


def model_names(incomplete: str) -> Offers:
    """Built-in networks."""
    return _beginning(incomplete, [(name, "built in") for name in models.names()])


def data_names(incomplete: str) -> Offers:
    """Everything that --data takes by name."""
    embedded = ("digits", "1,797 handwritten digits, embedded")
    return _beginning(incomplete, [embedded, *fetchable("")])


def fetchable(incomplete: str) -> Offers:
    """Data sets that can be fetched."""
    return _beginning(incomplete, [(name, entry.summary) for name, entry in CATALOGUE.items()])


def studies(incomplete: str) -> Offers:
    """Studies that come with the package."""
    return _beginning(incomplete, [(name, "built in") for name in study_names()])


def _beginning(incomplete: str, offers: Offers) -> Offers:
    return [(name, text) for name, text in offers if name.startswith(incomplete)]
