"""A pipe of Windows takes few characters: results are spelled in those, and are not an error."""

import io
import pathlib
import sys

import pytest

import spiritlevel
from spiritlevel import cli
from spiritlevel.cli.console import spell_what_cannot_be_shown, spelled

SRC = pathlib.Path(spiritlevel.__file__).parent


def pipe(encoding):
    return io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("ascii", "-1 <= kappa +- 2"),
        ("cp1252", "-1 <= kappa ± 2"),  # Western Europe
        ("cp1253", "-1 <= κ ± 2"),  # Greece
        ("utf-8", "−1 ≤ κ ± 2"),
    ],
)
def test_what_can_be_shown_is_kept(encoding, shown):
    stream = pipe(encoding)
    spell_what_cannot_be_shown(stream)
    stream.write("−1 ≤ κ ± 2")
    assert stream.buffer.getvalue().decode(encoding) == shown


def test_every_character_of_the_package_has_a_spelling():
    used = {each for path in SRC.rglob("*.py") for each in path.read_text("utf-8")}
    assert {each for each in used if not each.isascii() and spelled(each) == "?"} <= {"漢"}


def test_a_stream_that_cannot_be_changed_is_left_alone():
    stream = io.StringIO()
    spell_what_cannot_be_shown(stream, None)  # no console at all, as pythonw has none
    stream.write("κ ≤ 2")
    assert stream.getvalue() == "κ ≤ 2"


@pytest.mark.parametrize("arguments", [["list", "relative.kappa"], ["show", "relative.kappa"]])
def test_a_command_ends_well(arguments, monkeypatch):
    monkeypatch.setattr(sys, "stdout", pipe("cp1252"))
    monkeypatch.setattr(sys, "argv", ["spiritlevel", *arguments])
    stream = sys.stdout
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert "relative.kappa" in stream.buffer.getvalue().decode("cp1252")
