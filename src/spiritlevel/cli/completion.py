"""Shell completion: of names of measures, models and data sets.

If nothing matches, the shell completes file names as usual. It waits for this at every press of the
tab key, so names that take torch to find out come from a file, which `python -m
spiritlevel.cli.completion` writes anew. Those that other packages add are not offered; they work.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable

Offers = list[tuple[str, str]]  # a name, and what it is
FILE = "completion.json"  # beside the commands


def in_file(kind: str, module: str = __file__) -> Callable[[str], Offers]:
    """Offers the names of one kind in the file beside a module."""

    def offered(incomplete: str) -> Offers:
        names = json.loads(pathlib.Path(module).with_name(FILE).read_text("utf-8"))[kind]
        return beginning(incomplete, [(name, text) for name, text in names.items()])

    return offered


measures = in_file("measures")
model_names = in_file("models")


def data_names(incomplete: str) -> Offers:
    """Data sets that --data accepts by name."""
    embedded = ("digits", "1,797 handwritten digits, embedded")
    return beginning(incomplete, [embedded, *fetchable("")])


def fetchable(incomplete: str) -> Offers:
    """Data sets that `spiritlevel data fetch` can download."""
    from ..inputs.data.catalogue import CATALOGUE

    return beginning(incomplete, [(name, entry.summary) for name, entry in CATALOGUE.items()])


def beginning(incomplete: str, offers: Offers) -> Offers:
    """The offers whose name starts with what was typed."""
    return [(name, text) for name, text in offers if name.startswith(incomplete)]


def written(**kinds: dict[str, str]) -> str:
    """The content of such a file."""
    return json.dumps(kinds, indent=1, ensure_ascii=False) + "\n"


def known() -> str:
    """What the file here must hold."""
    from ..inputs import models
    from ..verbs import measuring as api

    return written(
        measures={card.name: card.summary for card in api.cards()},
        models=dict.fromkeys(models.names(), "built in"),
    )


if __name__ == "__main__":
    pathlib.Path(__file__).with_name(FILE).write_text(known(), encoding="utf-8")
