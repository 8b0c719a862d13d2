"""Every command refuses wrong options and files with one line and no traceback."""

import random

import pytest

from hostile.command_lines import attempt, cases
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
    "data fetch": (["data", "fetch"], ["PATTERN"]),
}
CASES = cases(COMMANDS)


def test_some_wrong_options(tmp_path):
    codes = [attempt(tmp_path, words) for words in random.Random(4).sample(CASES, 50)]
    assert codes.count(1) + codes.count(2) > 25  # meta: most of them are wrong


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(10))
def test_all_wrong_options(tmp_path, part):
    for words in CASES[part::10]:
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
