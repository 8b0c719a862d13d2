"""The laboratory's commands keep the habits of all commands."""

import json

import pytest

import fresh
from command_line import run


@pytest.mark.parametrize(
    "name", ["study", "study run", "study preflight", "study report", "watch", "demo"]
)
def test_help_shows_examples_of_the_command_itself(name):
    _, _, examples = run(*name.split(), "--help").stdout.partition("Examples:\n")
    assert f"  spiritlevel {name} " in examples.replace("\n", " ")


def test_no_command_is_answered_with_the_help():
    result = run("study")
    assert result.stdout.startswith("Usage: spiritlevel study")
    assert "Examples:\n" in result.stdout
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "code"), [(["study", "status", "nowhere"], 1), (["study", "rnu"], 2)]
)
def test_exit_codes_tell_what_went_wrong(arguments, code):
    [line] = run(*arguments, code=code).stderr.splitlines()
    assert line.startswith("error: ")


def test_a_folder_without_a_study_makes_no_page(tmp_path):
    out = tmp_path / "x.html"
    assert "study" in run("report", tmp_path, "--out", out, code=1).stderr
    assert not out.exists()


def test_studies_stand_below_their_paper():
    lines = run("study", "list").stdout.splitlines()
    title = next(
        i for i, line in enumerate(lines) if "Relative Flatness and Generalization" in line
    )
    later = [line.split()[0] for line in lines[title + 1 :] if line.strip()]
    assert later[0].startswith("002-")
    assert "Of no paper" in lines


THREE_BY_THREE = """
name: few
grid:
  lr: [0.1, 0.01, 0.001]
  batch_size: [16, 32, 64]
seeds: 4
"""


def test_a_preflight_says_what_a_study_could_see(tmp_path):
    file = tmp_path / "few.yaml"
    file.write_text(THREE_BY_THREE, encoding="utf-8")
    said = " ".join(run("study", "preflight", file).stdout.split())
    assert said.startswith("What 9 settings with 4 seeds could show with power 0.8: over all runs:")
    assert "no honest interval, since any of lr and batch_size may decide" in said
    more = run("study", "preflight", file, "--set", "seeds=12", "--json", "-").stdout
    found = json.loads(more)
    assert found["format"] == "spiritlevel-preflight-1"
    assert (found["runs"], found["sees_over"]) == (108, None)
    assert 0.1 < found["sees_within"] < 0.6


BLOCKED = """
import sys
sys.modules["matplotlib"] = None
from spiritlevel.cli import main
main()
"""


def test_missing_matplotlib_answers_before_training(tmp_path):
    done = fresh.run("-c", BLOCKED, "demo", cwd=tmp_path)
    assert done.returncode == 1
    needed = "error: Drawing the demo's figures needs matplotlib: pip install 'spiritlevel[plots]'"
    assert done.stderr == f"{needed}\n"
    assert list(tmp_path.iterdir()) == []
