"""Shells are answered from a file that says what the commands say, and without torch."""

import os
import pathlib
import shlex
import subprocess
import sys

import pytest
import typer

from spiritlevel.cli import completion_index
from spiritlevel.cli.app import app

SRC = pathlib.Path(completion_index.__file__).parents[2]
CODE = """
import atexit, sys
atexit.register(lambda: print("torch" in sys.modules, file=sys.stderr))
sys.argv = ["spiritlevel"]
from spiritlevel.cli import main
main()
"""


def offered(line):
    """What a bash is offered, and whether torch was imported for it."""
    words = shlex.split(line) + [""] * line.endswith(" ")
    asked = {
        "_SPIRITLEVEL_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        "PYTHONPATH": str(SRC),
    }
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=os.environ | asked, capture_output=True, text=True
    )
    return done.stdout.split(), done.stderr.strip().splitlines()[-1]


def test_the_file_is_that_of_the_commands():
    """If not: python -m spiritlevel.cli.completion_index."""
    written = completion_index.FILE.read_text(encoding="utf-8")
    assert written == completion_index.as_text(typer.main.get_command(app))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("spiritlevel mea", ["measure"]),
        ("spiritlevel show head.t", ["head.trace", "head.trace_squared"]),
        ("spiritlevel measure --measures softmax.e", ["softmax.entropy"]),
        ("spiritlevel compare --no-m", ["--no-match"]),
        ("spiritlevel data fetch fash", ["fashion-mnist"]),
        ("spiritlevel study run di", ["digits"]),
        ("spiritlevel measure --jso", ["--json"]),
        ("spiritlevel show zzz", []),
    ],
)
def test_a_shell_does_not_wait_for_torch(line, names):
    assert offered(line) == (names, "False")
