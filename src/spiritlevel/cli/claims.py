"""A paper's claim and the outcome here, as text for the terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from ..papers.judgement import Judgement
from ..papers.study_section import claim_table
from .console import note, show, tell


def print_claim(console: Console, judged: Judgement) -> None:
    """Print source, claim, verdict and the parts of the claim; or what is missing to judge it."""
    tell(console, judged.source)
    tell(console, judged.experiment.claim, bold="The claim: ")
    tell(console, judged.conclusion, bold=f"Here: {judged.verdict}. ")
    for text in judged.missing:
        tell(console, text, mark="  • ")
    if judged.outcome is not None:
        if judged.outcome.left_out:
            tell(console, judged.outcome.left_out, bold="Left out: ")
        if judged.outcome.why:
            tell(console, judged.outcome.why, bold="Why: ")
        console.print()
        _print_parts(console, judged)
        console.print()
    for text in (*judged.scale, judged.count):
        note(console, text)


def _print_parts(console: Console, judged: Judgement) -> None:
    assert judged.outcome is not None
    parts = claim_table(judged.outcome.findings)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), show_edge=False)
    first, here, seen = parts.headings
    table.add_column(first.title)
    table.add_column(here.title, no_wrap=True)
    table.add_column(seen.title)
    for row in parts.rows:
        table.add_row(*map(str, row))
    show(console, table)
