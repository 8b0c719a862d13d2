"""New interpreters that say what they have imported: torch alone takes seconds."""

import json
import os
import shlex
import subprocess
import sys

import fresh

# Once torch is imported it stays, so the lines from the first one that imports it on are told.
LINES = """
import contextlib, io, json, shlex, sys
from spiritlevel.cli.app import app
ends = {}
for line in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            app(shlex.split(line))
        except SystemExit as ended:
            ends[line] = [ended.code, "torch" in sys.modules]
print(json.dumps(ends))
"""
COMPLETION = """
import atexit, sys
atexit.register(lambda: print("torch" in sys.modules, file=sys.stderr))
sys.argv = ["spiritlevel"]
from spiritlevel.cli import main
main()
"""


def printed(code, *, given="", **env) -> subprocess.CompletedProcess:
    """What an interpreter prints that has imported nothing."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": fresh.PATH} | env,
        input=given,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )


def ends_of(lines) -> dict[str, tuple[int, bool]]:
    """By command line, one after the other: its exit code, and whether torch is imported by now."""
    done = printed(LINES, given=json.dumps(list(lines)))
    assert done.returncode == 0, done.stderr
    return {line: tuple(end) for line, end in json.loads(done.stdout).items()}


def help_lines(commands, *words):
    """`COMMAND --help` for each of these commands, and for every command below them."""
    for name, command in commands.items():
        yield shlex.join([*words, name, "--help"])
        yield from help_lines(getattr(command, "commands", {}), *words, name)


def offered(line) -> tuple[list[str], str]:
    """What a bash is offered, and whether torch was imported for it."""
    words = shlex.split(line) + [""] * line.endswith(" ")
    done = printed(
        COMPLETION,
        _SPIRITLEVEL_COMPLETE="complete_bash",
        COMP_WORDS=line,
        COMP_CWORD=str(len(words) - 1),
    )
    return done.stdout.split(), done.stderr.strip().splitlines()[-1]
