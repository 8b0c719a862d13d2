"""The cards as a list, one by one, as JSON, and as Markdown."""

from __future__ import annotations

import json as json_text
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..measures import METHODS, Card
from ..measures.options import Option, known_options
from ..symmetries import SYMMETRIES
from . import console

FORMAT = "spiritlevel-cards-1"


def print_list(page: Console, cards: Iterable[Card]) -> None:
    """Print two columns: the name, and below each other summary, cost and invariances."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for card in cards:
        table.add_row(card.name, card.summary)
        table.add_row("", Text(f"cost: {_short_cost(card)}", "dim"))
        unchanged = ", ".join(s for s in SYMMETRIES if s in card.invariant)
        table.add_row("", Text(f"unchanged by: {unchanged}", "dim"))
    console.show(page, table)


def print_card(page: Console, card: Card) -> None:
    """Print everything on the card, one heading per fact."""
    console.tell(page, card.summary, bold=f"{card.name}: ")
    unchanged = [s for s in SYMMETRIES if s in card.invariant]
    moved = [s for s in SYMMETRIES if s not in card.invariant]
    sections = {
        "formula": card.formula,
        "paper": card.paper,
        "unchanged by": _symmetry_lines(unchanged),
        "moved by": _symmetry_lines(moved),
        "direction": card.direction_in_words,
        "how it is computed": METHODS[card.found_by],
        "cost": card.cost_in_words(),
        "options": "\n".join(_option_lines(card)) or "none",
        "when it misleads": card.misleads,
        "measured": "by default" if card.default else "only on request",
    }
    for heading, text in sections.items():
        page.print(Text(f"  {heading}", "bold"))
        for line in text.splitlines():
            console.tell(page, line, mark="    ")
    page.print()


def as_json(cards: Iterable[Card]) -> str:
    """The same facts as JSON."""
    return json_text.dumps({"format": FORMAT, "cards": [_facts(card) for card in cards]}, indent=2)


def _facts(card: Card) -> dict[str, Any]:
    return {
        "name": card.name,
        "summary": card.summary,
        "formula": card.formula,
        "paper": card.paper,
        "unchanged_by": [name for name in SYMMETRIES if name in card.invariant],
        "moved_by": [name for name in SYMMETRIES if name not in card.invariant],
        "direction": card.direction,
        "computed": METHODS[card.found_by],
        "cost": card.cost_in_words(),
        "options": {
            option.name: {"default": option.default, "meaning": option.text}
            for option in _options(card)
        },
        "misleads": card.misleads,
        "default": card.default,
    }


def _symmetry_lines(names: Sequence[str]) -> str:
    return "\n".join(f"{name}: {SYMMETRIES[name]}" for name in names) or "none of the known moves"


def _options(card: Card) -> list[Option]:
    known = known_options()
    return [known[name] for name in card.options]


def _option_lines(card: Card) -> list[str]:
    return [f"{option.name} ({option.default}): {option.text}" for option in _options(card)]


def _short_cost(card: Card) -> str:
    return card.cost_in_words().partition(" (")[0]


def markdown_table(cards: Iterable[Card]) -> str:
    """One row per measure, one column per symmetry, with short words so that all columns fit."""
    moves = (name.replace("_", " ") for name in SYMMETRIES)  # in a heading they can be broken
    header = ["measure", "what it is", *moves, "cost"]
    rows = [
        [
            f"`{card.name}`",
            card.summary,
            *("stays" if name in card.invariant else "moves" for name in SYMMETRIES),
            _short_cost(card),
        ]
        for card in cards
    ]
    lines = [header, ["---"] * len(header), *rows]
    return "".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n" for row in lines
    )
