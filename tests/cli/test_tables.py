"""Tables of layers: a number is never cut off, whatever the names are."""

import io

import pytest

from spiritlevel.cli.console import PlainConsole
from spiritlevel.cli.tables import print_parts
from spiritlevel.records.content import Column, Table

NUMBERS = ["1,024", "-7.1e-08", "-1.2e-06", "exact"]
LONG = "bert.encoder.layer.0.attention.self.query.weight"


def printed(rows, width):
    console = PlainConsole(file=io.StringIO(), width=width)
    columns = [Column("layer", kind="name"), "entries", "2 bits", "4 bits", ""]
    print_parts(console, [Table(columns, [[name, *cells] for name, cells in rows.items()])])
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 200])
def test_numbers_are_whole_and_the_table_fits(width):
    shown = printed({LONG: NUMBERS, "head": NUMBERS}, width)
    assert "…" not in shown
    assert shown.split("head")[1].split() == NUMBERS
    assert max(map(len, shown.splitlines())) <= width


def test_names_break_at_their_dots():
    first, *_ = printed({LONG: NUMBERS}, 80).splitlines()[2:]
    assert first.split()[0] == "bert.encoder.layer.0.attention.self."
    assert LONG in printed({LONG: NUMBERS}, 90)


def test_a_name_without_dots_is_folded():
    shown = printed({"a" * 100: NUMBERS}, 80)
    assert "…" not in shown
    assert shown.count("a") >= 100
