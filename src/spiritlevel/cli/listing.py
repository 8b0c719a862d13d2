"""`spiritlevel list` and `show`: what there is to measure."""

from __future__ import annotations

from typing import Annotated

import typer

from . import completion, console, options, outputs
from .common import examples

Pattern = Annotated[
    str,
    typer.Argument(
        help="A name, or a pattern in quotes: 'head.*'.", autocompletion=completion.measures
    ),
]


@examples("""\b
Examples:
  spiritlevel list
  spiritlevel list 'relative.*'
  spiritlevel list 'sharpness.*' --json - | jq '.cards[].name'
""")
def list_measures(
    pattern: Pattern = "*",
    json: options.Json = None,
) -> None:
    """List the measures: summary, cost, invariances."""
    from ..verbs import measuring as api
    from . import cards

    chosen = api.cards(pattern)
    talk = console.talk(json)
    cards.print_list(talk, chosen)
    outputs.write_json(talk, json, cards.as_json(chosen))


@examples("""\b
Examples:
  spiritlevel show relative.kappa
  spiritlevel show 'head.*'
  spiritlevel show relative.kappa --json card.json
""")
def show(name: Pattern, json: options.Json = None) -> None:
    """Show the card of a measure.

    Shows its formula, paper, what changes it and what does not, its cost, and when it misleads.
    """
    from ..verbs import measuring as api
    from . import cards

    chosen = api.cards(name)
    talk = console.talk(json)
    for card in chosen:
        cards.print_card(talk, card)
    outputs.write_json(talk, json, cards.as_json(chosen))
