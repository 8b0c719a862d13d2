"""What a record tells is the same as text, in notebooks, terminals, Markdown and HTML."""

import dataclasses
import html
import io
import re

import pytest
import torch

import spiritlevel as sl
from hostile.records import data, network
from spiritlevel.cli.console import PlainConsole
from spiritlevel.cli.tables import print_parts
from spiritlevel.engine.weight_space.density import SpectralDensity
from spiritlevel.pages.report.markup import table as html_table
from spiritlevel.records.content import Column, Notes, Table, Text, Uncertain, number
from spiritlevel.records.notebooks import as_html, as_text
from spiritlevel.results import Neurons, Solution
from spiritlevel.verbs.spectra import Spectrum

VALUES = {"a.b": 0.12345678, "c.d": -98.7654321}
COLUMNS = [
    Column("measure"),
    Column("value", digits=6),
    Column("± data", "the sampling error", digits=2),
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
    "page": lambda parts: re.sub('data-value="[^"]*"', "", html_table(parts[0], {})),
}


@pytest.mark.parametrize("render", RENDERERS.values(), ids=RENDERERS)
def test_every_renderer_shows_the_same_digits(render):
    plain = html.unescape(render([Table(COLUMNS, ROWS)])).replace("−", "-").replace("\\", "")
    found = set(re.findall(r"-?\d+\.\d+", plain))
    assert found == NUMBERS


DIGITS = [  # of a value and its error: two of the error, and as many of the value
    (2528.583, 152.3, "2529", "150"),
    (0.00123456, 0.0000789, "0.001235", "7.9e−5"),
    (-98.76543, 0.5, "−98.77", "0.5"),
    (3.0e7, 2.0e5, "3e7", "200000"),
    (0.25, 4.0, "0.2", "4"),
    (12.3456789, 0.0, "12.3457", "0"),
]


@pytest.mark.parametrize(("value", "error", "shown", "shown_error"), DIGITS)
def test_a_value_has_the_digits_that_its_error_allows(value, error, shown, shown_error):
    assert (number(Uncertain(value, error), 6), number(error, 2)) == (shown, shown_error)


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
    curvature = sl.operator(network(0), data(), kind="ggn")
    found = [
        sl.measure(network(0), data(), measures="head.*"),
        sl.eigenvalues(network(0), data(), num=2),
        sl.landscape(network(0), data(), points=3),
        sl.diagonal(network(0), data()),
        sl.preflight(network(0), data()),
        sl.density(network(0), data(), num_vectors=2, steps=3),
        Spectrum(sl.eigenvalues(network(0), data())),
        *sl.neurons(network(0), data()).values(),
        curvature.solve(torch.ones(curvature.shape[0], 2), 0.1, max_passes=1),
        sl.quantization(network(0), data(), mean_bits=4.0),
        sl.pruning(network(0), data(), share=0.3),
    ]
    for record in found:
        words = set(re.sub("<[^>]+>", " ", html.unescape(record._repr_html_())).split())
        rule = {word for word in str(record).split() if not word.strip("-")}
        assert set(str(record).split()) - rule == words


def test_what_a_density_tells_are_the_sums_over_all_eigenvalues():
    nodes = torch.tensor([[1.0, 3.0], [2.0, 2.0]]).double()
    found = SpectralDensity(nodes, torch.full((2, 2), 0.5).double(), size=10)
    answer, table = found.describe()
    assert "10 eigenvalues, as 2 random vectors with 2 products each" in answer.paragraphs[0]
    # one vector gives mean 2 and mean square 5, the other 2 and 4; half their difference is ±
    assert table.rows == [
        ["mean", 2.0, 0.0],
        ["sum, the trace", 20.0, 0.0],
        ["mean square", 4.5, 0.5],
        ["sum of squares", 45.0, 5.0],
    ]
    one_step = SpectralDensity(nodes[:1, :1], torch.ones(1, 1).double(), size=10)
    assert [row[0] for row in one_step.describe()[1].rows] == ["mean", "sum, the trace"]
    assert "±" not in str(one_step)


def test_the_largest_neurons_are_told_with_their_errors():
    values = torch.tensor([0.1, 7.0, -2.0, 3.0, 0.0, 0.5, 0.2]).double()
    exact = Neurons(values, torch.zeros(7), exact=True, text="")
    assert [line.split() for line in str(exact).splitlines()[4:]] == [
        *(["1", "7"], ["3", "3"], ["5", "0.5"], ["6", "0.2"], ["0", "0.1"]),
    ]
    assert "7 neurons, sum of ρ(j) 8.8, exact" in str(exact)
    probed = Neurons(values, values.abs() / 10, exact=False, text="8 probes")
    assert "8.8, 8 probes" in str(probed)
    assert str(probed).splitlines()[4].split() == ["1", "7", "0.7"]


def test_a_solution_tells_what_did_not_converge():
    found = Solution(torch.ones(3, 2), [1e-6, 0.25], [True, False], 4, "Raise 'max_passes'.")
    answer, *lines, what_to_do = str(found).splitlines()
    assert answer.startswith("1 of 2 columns converged, after 4 products of the whole block")
    assert [line.split() for line in lines[3:5]] == [["0", "1e−6", "yes"], ["1", "0.25", "no"]]
    assert what_to_do == "Raise 'max_passes'."


def test_changes_tell_their_weights_choices_and_what_stays():
    rounded = sl.quantization(network(0), data(), bits=(2, 8), mean_bits=5.0)
    chosen, curves, table, uniforms, _ = rounded.describe()
    for name, entries, *rises, best in table.rows:
        assert entries == rounded.sizes[name]
        assert rises == [rounded.of(name, bits).rise for bits in (2, 8)]
        assert best == rounded.chosen.bits[name]
    assert [row[0] for row in uniforms.rows] == ["2 bits", "8 bits"]
    assert chosen.paragraphs == [f"Chosen: {rounded.chosen.text()}"]
    measured = curves.series[-1]
    assert list(measured.y) == [plan.measured_rise for plan in rounded.uniforms]
    unchecked = sl.pruning(network(0), data(), share=0.3, check=False)
    left = dataclasses.replace(unchecked, left_out={"odd": "it is used twice"})
    _, _, table, *_, notes = left.describe()
    assert {row[0]: row[-1] for row in table.rows} == {
        name: len(gone) for name, gone in left.chosen.units.items()
    }
    assert list(notes.lines) == ["left out: odd: it is used twice"]
