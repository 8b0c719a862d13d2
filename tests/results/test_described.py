"""What a record tells is the same as text, in notebooks, terminals, Markdown and HTML."""

import html
import io
import re

import pytest

import spiritlevel as sl
from hostile.records import data, network
from spiritlevel.cli.console import PlainConsole
from spiritlevel.cli.tables import print_parts
from spiritlevel.content import Column, Notes, Table, Text
from spiritlevel.notebooks import as_html, as_text
from spiritlevel.pages import markdown
from spiritlevel.pages.report.markup import table as html_table

VALUES = {"a.b": 0.12345678, "c.d": -98.7654321}
COLUMNS = [
    Column("measure"),
    Column("value", form=".6g"),
    Column("± data", "the sampling error", form=".2g"),
    Column("note", kind="note"),
]
LONG = "a note that is too long to stand beside its number, so that it stands below the table"
ROWS = [[name, value, value / 100, LONG] for name, value in VALUES.items()]
NUMBERS = {"0.123457", "0.0012", "-98.7654", "-0.99"}


def printed(parts, width=80):
    console = PlainConsole(file=io.StringIO(), width=width)
    print_parts(console, parts)
    return console.file.getvalue()


RENDERERS = {
    "text": as_text,
    "notebook": as_html,
    "terminal": printed,
    "markdown": lambda parts: "\n".join(markdown.render(parts)),
    "page": lambda parts: re.sub('data-value="[^"]*"', "", html_table(parts[0], {})),
}


@pytest.mark.parametrize("render", RENDERERS.values(), ids=RENDERERS)
def test_every_renderer_shows_the_same_digits(render):
    plain = html.unescape(render([Table(COLUMNS, ROWS)])).replace("−", "-").replace("\\", "")
    found = set(re.findall(r"-?\d+\.\d+", plain))
    assert found == NUMBERS


@pytest.mark.parametrize("name", ["text", "notebook", "terminal"])
def test_a_long_note_is_said_once_below_the_table(name):
    shown = " ".join(RENDERERS[name]([Table(COLUMNS, ROWS)]).split())
    assert shown.count("beside its number") == 1
    assert shown.count("[1]") == 3


def test_notes_stand_right_below_their_table_and_sentences_apart():
    parts = [Text(["First."]), Table(["a", "b"], [["x", 1.5]]), Notes("2 forwards", 7, ["Last."])]
    assert as_text(parts).splitlines() == [
        *("First.", "", "a    b", "------", "x  1.5"),
        *("7 samples, 2 forwards over the data", "Last."),
    ]
    assert printed(parts).splitlines()[-2:] == [
        "Last.",
        "counted: 2 forwards per sample over 7 samples",
    ]


def test_a_terminal_shows_groups_of_columns_below_each_other():
    moves = [Column(f"move_{i}", group="moves") for i in range(4)]
    answer = Column("answer", kind="word", group="answers")
    columns = [Column("measure"), Column("value", wide=True), *moves, answer, Column("verdict")]
    rows = [["a.b", 5.0, 1.0, 2.0, 3.0, 4.0, "no", "x"], ["c.d", 6.0, *"=" * 4, None, "y"]]
    shown = printed([Table(columns, rows)])
    tables = [part.split("\n") for part in shown.strip("\n").split("\n\n")]
    assert [" ".join(table[-1].split()) for table in tables] == [
        *("c.d = = = y", "c.d = y", "a.b no x"),
    ]
    assert "5" not in shown
    assert as_text([Table(columns, rows)]).splitlines()[2].split()[1] == "5"


def test_a_record_tells_the_same_in_a_notebook_and_at_the_prompt():
    found = [
        sl.measure(network(0), data(), measures="head.*"),
        sl.eigenvalues(network(0), data(), num=2),
        sl.landscape(network(0), data(), points=3),
        sl.diagonal(network(0), data()),
        sl.preflight(network(0), data()),
    ]
    for record in found:
        words = set(re.sub("<[^>]+>", " ", html.unescape(record._repr_html_())).split())
        rule = {word for word in str(record).split() if not word.strip("-")}
        assert set(str(record).split()) - rule == words
