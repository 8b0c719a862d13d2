"""Where the laboratory is not installed, its commands say which line installs it."""

import pytest

from command_line import run
from spiritlevel.ground import plugins
from spiritlevel.pages import report

PIP = "needs spiritlevel-lab: pip install 'spiritlevel[lab]'\n"


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """As if no other package was installed."""
    monkeypatch.setattr(plugins, "points", lambda group: ())
    monkeypatch.setattr(plugins, "_loaded", {})
    monkeypatch.setattr(report, "_of_folders", [])


@pytest.mark.parametrize(
    "line", ["study", "study --help", "study run digits", "demo", "demo --quick", "watch runs"]
)
def test_a_command_says_the_pip_line(line):
    name, *_ = words = line.split()
    assert run(*words, code=1).stderr == f"error: The command {name!r} {PIP}"


def test_so_does_the_report_of_a_study(tmp_path):
    assert run("report", tmp_path, code=1).stderr == f"error: The page of a folder {PIP}"


def test_the_help_lists_them_with_it():
    shown = " ".join(run("--help").stdout.split())
    for name in ("study", "watch", "demo"):
        assert f"{name} Not installed: pip install 'spiritlevel[lab]'." in shown
