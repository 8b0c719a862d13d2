"""Shells are offered names from a file, and do not wait for torch."""

import pathlib

import pytest

from light import offered
from spiritlevel.cli import completion


def test_the_file_has_all_measures_and_networks():
    """If not: python -m spiritlevel.cli.completion."""
    file = pathlib.Path(completion.__file__).with_name(completion.FILE)
    assert file.read_text(encoding="utf-8") == completion.known()


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
