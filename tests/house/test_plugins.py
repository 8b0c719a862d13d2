"""Packages that add measures or studies, and what is said if they cannot be used."""

import pathlib

import pytest

from plugin_packages import MEASURE, REFUSAL, WITH_OPTION, install, printed

USED = """
import torch
import spiritlevel as sl

model, data = torch.nn.Linear(3, 2), (torch.randn(4, 3), torch.tensor([0, 1, 1, 0]))
asked = {"measures": "mine.ball", "options": {"my_radius": 0.3}}
report = sl.measure(model, data, **asked)
monitor = sl.FlatnessMonitor(model, data, **asked)
monitor.epoch_end()
print(
    report["mine.ball"].value,
    sl.Report.from_json(report.to_json())["mine.ball"].settings["my_radius"],
    sl.measure(model, data, measures="mine.ball", options=sl.Options())["mine.ball"].value,
    sl.preflight(model, data, **asked).measures,
    sl.audit(model, data, **asked).original["mine.ball"].value,
    sl.compare({"a": model, "b": model}, data, **asked).reports["a"]["mine.ball"].value,
    monitor.rows[0]["mine.ball"],
)
"""
COMMANDS = """
from typer.testing import CliRunner
from spiritlevel.cli.app import app

network = ["--model", "mlp", "--data", "digits", "--samples", "20", "--measures", "mine.ball"]
for line in (
    ["show", "mine.ball"],
    ["measure", *network, "--option", "my_radius=0.3"],
    ["measure", *network, "--option", "my_radius=-1"],
):
    print(" ".join(CliRunner().invoke(app, line).output.split()))
"""


REFUSED = """
import spiritlevel as sl
try:
    sl.cards()
except sl.SpiritlevelError as error:
    print(error)
"""


def test_a_module_that_fails_is_named_with_the_reason_each_time(tmp_path):
    source = MEASURE.format(name="mine.size") + "\nraise ZeroDivisionError('division by zero')\n"
    install(tmp_path, "broken", source, group="spiritlevel.measures")
    text = (
        "The module 'broken', which an installed package names under the entry point "
        "'spiritlevel.measures', cannot be imported: ZeroDivisionError: division by zero. Repair "
        "or uninstall that package.\n"
    )
    assert printed(tmp_path, REFUSED + REFUSED) == 2 * text


def test_a_name_that_is_taken_is_refused_with_both_places(tmp_path):
    install(tmp_path, "taken", MEASURE.format(name="norms.weight"), group="spiritlevel.measures")
    text = printed(tmp_path, REFUSED)
    assert "'norms.weight' is registered twice: by spiritlevel.measures.norms.weight" in text
    assert "and taken.size. Choose another name." in text


def test_an_option_of_a_measure_is_one_in_every_verb(tmp_path):
    install(tmp_path, "mine", WITH_OPTION, group="spiritlevel.measures")
    assert printed(tmp_path, USED) == "0.3 0.3 0.1 ('mine.ball',) 0.3 0.3 0.3\n"


def test_an_option_of_a_measure_is_one_of_the_commands(tmp_path):
    install(tmp_path, "mine", WITH_OPTION, group="spiritlevel.measures")
    shown, measured, refused = printed(tmp_path, COMMANDS).splitlines()
    assert "options my_radius (0.1): size of the ball" in shown
    assert "mine.ball 0.3" in measured
    assert REFUSAL in refused


def test_a_broken_study_package_does_not_keep_anyone_from_measuring(tmp_path):
    install(tmp_path, "broken", "import nothing_of_this_name", group="spiritlevel.studies")
    code = "import spiritlevel as sl; print(len(sl.cards()) > 50)"
    assert printed(tmp_path, code) == "True\n"


def test_a_folder_that_comes_later_is_searched_too(tmp_path):
    install(tmp_path / ".", "later", MEASURE.format(name="mine.size"), group="spiritlevel.measures")
    code = f"""
import sys
import spiritlevel as sl
before = [card.name for card in sl.cards()]
sys.path.append({str(tmp_path)!r})
after = [card.name for card in sl.cards()]
print(sorted(set(after) - set(before)))
"""
    assert printed(pathlib.Path("."), code) == "['mine.size']\n"


def test_a_definition_that_is_run_again_replaces_the_card(monkeypatch):
    from spiritlevel.measures import get, measure

    registry = measure.__globals__
    monkeypatch.setitem(registry, "_CARDS", dict(registry["_CARDS"]))
    cell = MEASURE.format(name="mine.size")
    exec(cell, {"__name__": "__main__"})
    exec(cell.replace("Number of weights", "How many weights there are"), {"__name__": "__main__"})
    assert get("mine.size").summary == "How many weights there are"
    with pytest.raises(ValueError, match="registered twice"):
        exec(cell, {"__name__": "another_module"})
