"""Shells are answered from a file that says what the commands say, and without torch."""

import pytest
import typer

from light import offered
from spiritlevel.cli import completion_index
from spiritlevel.cli.app import app


def test_the_files_are_those_of_the_commands():
    """If not: python -m spiritlevel.cli.completion_index."""
    told = completion_index.files(typer.main.get_command(app))
    assert {file: file.read_text(encoding="utf-8") for file in told} == told


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("spiritlevel mea", ["measure"]),
        ("spiritlevel show head.t", ["head.trace", "head.trace_squared"]),
        ("spiritlevel measure --measures softmax.e", ["softmax.entropy"]),
        ("spiritlevel compare --no-m", ["--no-match"]),
        ("spiritlevel data fetch fash", ["fashion-mnist"]),
        ("spiritlevel measure --jso", ["--json"]),
        ("spiritlevel show zzz", []),
    ],
)
def test_a_shell_does_not_wait_for_torch(line, names):
    assert offered(line) == (names, "False")
