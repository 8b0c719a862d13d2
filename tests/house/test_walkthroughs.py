"""CONTRIBUTING is true: its map is the table of rooms, and every walk-through runs as it stands."""

import os
import pathlib
import re
import shlex
import shutil

import pytest

import fresh
from house import rooms

ROOT = pathlib.Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(python|toml|yaml|console)\n(.*?)^```", flags=re.M | re.S)
SECTIONS = dict(re.findall(r"^## (Add .+?)\n(.*?)(?=^## |\Z)", TEXT, flags=re.M | re.S))
PROGRAMS = {
    "spiritlevel": ["-m", "spiritlevel"],
    "pytest": ["-m", "pytest", "-q", "-p", "no:cacheprovider"],
    "python": [],
}


def test_there_is_a_walk_through_of_every_kind():
    kinds = ["a measure", "an operation", "a study", "a paper's experiment", "a penalty"]
    assert list(SECTIONS) == [f"Add {kind}" for kind in kinds]


def test_the_map_is_the_table_of_rooms():
    assert f"```text\n{rooms.import_map()}\n```" in TEXT


def install(folder, toml):
    """What pip writes for the entry points of a package."""
    [name] = re.findall(r'^name = "(.+)"', toml, flags=re.M)
    [(group, points)] = re.findall(
        r'^\[project.entry-points."(.+)"\]\n(.*)', toml, flags=re.M | re.S
    )
    info = folder / f"{name.replace('-', '_')}-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{points.replace(chr(34), '')}")


def run(folder, line):
    """A command of the walk-through, in its folder and with its own copy of the sources."""
    program, *args = shlex.split(line)
    path = os.pathsep.join(map(str, (folder, folder / "src")))
    env = {"PYTHONPATH": path, "COLUMNS": "120"}
    return fresh.run(*PROGRAMS[program], *args, env=env, cwd=folder)


def follow(section, folder):
    """Write the files and run the commands, in order; what each command printed."""
    printed = {}
    for language, body in BLOCK.findall(section):
        if language == "console":
            for line in re.findall(r"^\$ (.+)", body, flags=re.M):
                done = run(folder, line)
                assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
                printed[line] = done.stdout
            continue
        path = folder / re.match(r"# (\S+)\n", body)[1]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(body, encoding="utf-8")
        if language == "toml":
            install(folder, body)
    return printed


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(
        ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
    )
    return tmp_path


@pytest.mark.nightly
def test_a_measure(folder):
    printed = follow(SECTIONS["Add a measure"], folder)
    listed, shown, measured, suite = printed.values()
    assert "mine.mean_eigenvalue" in listed
    assert "Parameters without effect make it smaller." in " ".join(shown.split())
    assert "mine.mean_eigenvalue" in measured
    assert re.search(r"^\d\d passed in", suite, flags=re.M)


def test_an_operation(folder):
    assert follow(SECTIONS["Add an operation"], folder) == {"python check_my_layers.py": ""}


@pytest.mark.nightly
def test_a_study(folder):
    listed, _, report = follow(SECTIONS["Add a study"], folder).values()
    assert "my-study" in listed
    assert "relative.kappa" in report


@pytest.mark.nightly
def test_an_experiment(folder):
    _, report = follow(SECTIONS["Add a paper's experiment"], folder).values()
    text = " ".join(report.split())
    assert "A larger learning rate fits the training data better." in text
    assert "the loss is lower with rate 0.3" in text


def test_a_penalty(folder):
    assert follow(SECTIONS["Add a penalty"], folder) == {"python train_with_it.py": ""}
