"""Wrong values for every option of a command line."""

import pytest
from typer.testing import CliRunner

from spiritlevel.cli.app import app

VALUES = [
    *(
        "",
        " ",
        "x",
        "-1",
        "0",
        "1e999",
        "nan",
        "inf",
        "9" * 400,
        "None",
        "[]",
        "{}",
        "a=b",
        "=",
        "a=",
    ),
    *("../..", "/dev/null", "/dev/null/x", ".", "none.npz", "none.pt", "x" * 5000, "é", "\ud800"),
    *("[/red]", "\x1b[31m", "a:b", ":", "os:system", "a.b:c", "*", "[", "%s", "(" * 300),
]


def attempt(folder, words: list[str]) -> int:
    """The exit code; an error must be one line of ours."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, SystemExit | None), (words, result.exception)
    assert "Traceback" not in result.output, words
    if result.exit_code == 1:
        [line] = [text for text in result.stderr.splitlines() if text.startswith("error: ")]
        assert "--debug for the traceback" not in line, (words, line)  # an error that is not ours
        assert len(line) > 30, (words, line)
    assert result.exit_code in (0, 1, 2), words
    return result.exit_code


def cases(commands) -> list[list[str]]:
    """Every option of every command with every wrong value; PATTERN is an argument.

    Args:
        commands: by name, the words that a command needs, and the options that are tried.
    """
    return [
        [*words, value] if option == "PATTERN" else [*words, *_file(words), option, value]
        for words, options in commands.values()
        for option in options
        for value in VALUES
        if not (option == "PATTERN" and value.startswith("-"))
    ]


def _file(words: list[str]) -> list[str]:
    """What has to be named besides, in a command whose options are tried."""
    return ["nothing-here"] if words[0] in ("report", "study", "watch", "compare") else []
