"""Markdown shows names from outside as they are, and numbers with the digits of their column."""

import pytest

from publishing import markdown
from spiritlevel.records.content import Cards, Column, Table, Text


def test_a_table_shows_the_digits_of_its_columns():
    columns = [Column("name"), Column("value", digits=6), Column("±", digits=2)]
    assert markdown.table(Table(columns, [["a_b", 0.12345678, 0.00123]])).splitlines() == [
        *("| name | value | ± |", "| --- | --- | --- |", r"| a\_b | 0.123457 | 0.0012 |"),
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("# heading", "\\# heading"),
        ("- item", "\\- item"),
        ("1. item", "1\\. item"),
        ("-0.5 is the value", "\\-0.5 is the value"),
        ("a\x1b[2Jb", "a\\\\x1b\\[2Jb"),
        ("<b>[x](y)</b>", "&lt;b&gt;\\[x\\](y)&lt;/b&gt;"),
        ("$x$ ~~y~~", "\\$x\\$ \\~\\~y\\~\\~"),
    ],
)
def test_a_paragraph_of_markdown_is_text(text, shown):
    assert markdown.render([Text([text])]) == [shown]


def test_a_name_cannot_end_its_code_in_markdown():
    assert markdown.render([Cards(["a`<b>"])]) == ["- `spiritlevel show a'<b>`"]
