"""The laboratory's commands refuse wrong options and files with one line and no traceback."""

import random

import pytest

from hostile.command_lines import attempt, cases

CASES = cases(
    {
        "study run": (["study", "run"], ["PATTERN", "--preset", "--set", "--out", "--executor"]),
        "study status": (["study", "status"], ["PATTERN"]),
        "study resume": (["study", "resume"], ["PATTERN"]),
        "study report": (["study", "report"], ["PATTERN", "--target"]),
        "study export": (["study", "export"], ["PATTERN", "--format", "--out"]),
        "study figures": (["study", "figures"], ["PATTERN", "--format"]),
        # Its state alone: a page would be served until Ctrl-C.
        "watch": (["watch", "--json", "-"], ["PATTERN", "--port"]),
    }
)


def test_some_wrong_options_of_studies(tmp_path):
    codes = [attempt(tmp_path, words) for words in random.Random(4).sample(CASES, 25)]
    assert codes.count(1) + codes.count(2) > 12  # meta: most of them are wrong


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(5))
def test_all_wrong_options_of_studies(tmp_path, part):
    for words in CASES[part::5]:
        attempt(tmp_path, words)
