"""Every command refuses wrong options and files with one line and no traceback."""

import random

import pytest
from typer.testing import CliRunner

from spiritlevel.cli.app import app
from spiritlevel.ground.errors import SpiritlevelError

FAST = ["--samples", "12", "--measures", "softmax.gini"]
COMMANDS = {
    "list": (["list"], ["PATTERN", "--json"]),
    "show": (["show", "relative.kappa"], ["--json"]),
    "measure": (
        ["measure", "--model", "mlp", "--model-arg", "hidden=4", *FAST],
        [
            *("--model", "--model-arg", "--checkpoint", "--data", "--split", "--samples"),
            *("--batch-size", "--loss", "--measures", "--option", "--layers", "--head"),
            *("--method", "--rtol", "--max-passes", "--memory", "--device", "--dtype", "--seed"),
            *("--json", "--html"),
        ],
    ),
    "audit": (["audit", "--model", "mlp", "--model-arg", "hidden=4", *FAST], ["--method"]),
    "spectrum": (
        ["spectrum", "--model", "mlp", "--model-arg", "hidden=4", "--samples", "12", "--num", "1"],
        ["--num", "--matrix", "--max-passes", "--plot", "--vectors", "--steps"],
    ),
    "landscape": (
        ["landscape", "--model", "mlp", "--model-arg", "hidden=4", "--samples", "12"],
        ["--directions", "--dimensions", "--points", "--range", "--to", "--cache", "--plot"],
    ),
    "compare": (["compare", "--model", "mlp"], ["PATTERN"]),
    "report": (["report"], ["PATTERN", "--out", "--target"]),
    "study run": (["study", "run"], ["PATTERN", "--preset", "--set", "--out", "--executor"]),
    "study status": (["study", "status"], ["PATTERN"]),
    "study resume": (["study", "resume"], ["PATTERN"]),
    "study report": (["study", "report"], ["PATTERN", "--target", "--resamples"]),
    "study export": (["study", "export"], ["PATTERN", "--format", "--out"]),
    "study figures": (["study", "figures"], ["PATTERN", "--format"]),
    "data fetch": (["data", "fetch"], ["PATTERN"]),
    # Its state alone: a page would be served until Ctrl-C.
    "watch": (["watch", "--json", "-"], ["PATTERN", "--port"]),
}
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


def cases() -> list[list[str]]:
    """Every option of every command with every wrong value."""
    return [
        [*words, value] if option == "PATTERN" else [*words, *_file(words), option, value]
        for words, options in COMMANDS.values()
        for option in options
        for value in VALUES
        if not (option == "PATTERN" and value.startswith("-"))
    ]


def _file(words: list[str]) -> list[str]:
    """What has to be named besides, in a command whose options are tried."""
    return ["nothing-here"] if words[0] in ("report", "study", "watch", "compare") else []


def test_some_wrong_options(tmp_path):
    codes = [attempt(tmp_path, words) for words in random.Random(4).sample(cases(), 50)]
    assert codes.count(1) + codes.count(2) > 25  # meta: most of them are wrong


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(10))
def test_all_wrong_options(tmp_path, part):
    for words in cases()[part::10]:
        attempt(tmp_path, words)


def test_a_raw_exception_would_be_noticed(tmp_path, monkeypatch):
    """Meta-test: the check above sees an error that is not ours."""

    def broken(pattern):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("spiritlevel.verbs.measuring.cards", broken)
    with pytest.raises(AssertionError):
        attempt(tmp_path, ["list"])
    monkeypatch.setattr("spiritlevel.verbs.measuring.cards", lambda pattern: _refuse())
    assert attempt(tmp_path, ["list"]) == 1


def _refuse():
    raise SpiritlevelError("The planted error must be shown in one line, and it is.")
