"""Tables of layers: a number is never cut off, whatever the names are."""

import io
import itertools

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


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_columns_that_do_not_fit_go_below_and_every_table_names_its_rows(width):
    titles = ["rank", "neuron.rho_sum", "Gini impurity", "loss", "accuracy"]
    numbers = [str(1000 + place) for place in range(len(titles))]
    console = PlainConsole(file=io.StringIO(), width=width)
    columns = [Column("network", kind="name"), *titles]
    print_parts(console, [Table(columns, [["rescaled", *numbers], ["plain", *numbers]])])
    shown = console.file.getvalue()
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
    rows = [line.split() for line in shown.splitlines()]
    for name in ("rescaled", "plain"):
        of_it = [row[1:] for row in rows if row[:1] == [name]]
        assert [*itertools.chain(*of_it)] == numbers  # each once, in their order
        assert len(of_it) == shown.count("network")
    assert (shown.count("network") == 1) is (width >= 80)
