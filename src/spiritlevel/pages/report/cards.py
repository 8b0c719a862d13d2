"""Measures' cards as HTML, folded up until they are asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...measures import METHODS, Card, get
from ...measures import names as measure_names
from ...symmetries import SYMMETRIES
from . import formula
from .markup import Links, escape


def anchors(names: Iterable[str]) -> dict[str, str]:
    """An id for every card; names from a file may hold anything, and may look alike.

    >>> anchors(["relative.kappa", "a b", "a<b"])
    {'relative.kappa': 'card-relative.kappa', 'a b': 'card-a-b', 'a<b': 'card-a-b-2'}
    """
    ids: dict[str, str] = {}
    for name in dict.fromkeys(names):
        plain = f"card-{re.sub(r'[^A-Za-z0-9._]+', '-', name)}"
        chosen, count = plain, 1
        while chosen in ids.values():
            count += 1
            chosen = f"{plain}-{count}"
        ids[name] = chosen
    return ids


def render(names: Iterable[str], links: Links) -> str:
    """The cards of these measures."""
    return f'<div class="cards">\n{"".join(_card(name, links[name]) for name in names)}</div>'


def cards_of(names: Iterable[str]) -> list[Card]:
    """The cards that exist: a file may hold measures of another version."""
    there = set(measure_names())
    return [get(name) for name in dict.fromkeys(names) if name in there]


def _card(name: str, anchor: str) -> str:
    existing = cards_of([name])
    if not existing:
        return (
            f'<details id="{escape(anchor)}"><summary><b>{escape(name)}</b></summary>'
            "<p>This version of spiritlevel has no card of that name.</p></details>\n"
        )
    [card] = existing
    unchanged = [text for move, text in SYMMETRIES.items() if move in card.invariant]
    moved = [text for move, text in SYMMETRIES.items() if move not in card.invariant]
    facts = {
        "Formula": f'<code class="formula">{formula.to_html(card.formula)}</code>',
        "When it misleads": escape(card.misleads),
        "Unchanged when you": escape("; ".join(unchanged) or "do none of the known moves"),
        "Moves when you": escape("; ".join(moved) or "do none of the known moves"),
        "Direction": escape(card.direction_in_words),
        "Computed": escape(METHODS[card.found_by]),
        "Cost": escape(card.cost_in_words()),
        "Paper": escape(card.paper),
    }
    rows = "".join(f"<dt>{title}</dt><dd>{text}</dd>\n" for title, text in facts.items())
    return (
        f'<details id="{escape(anchor)}"><summary><b>{escape(name)}</b> '
        f"<span>{escape(card.summary)}</span></summary>\n<dl>\n{rows}</dl></details>\n"
    )
