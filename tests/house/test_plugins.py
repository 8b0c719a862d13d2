"""Packages that add measures or studies, and what is said if they cannot be used."""

import os
import pathlib
import textwrap

import pytest

import fresh

MEASURE = """
from spiritlevel.measures import EVERY, Measured, Measurement, measure

@measure(
    name="{name}", summary="Number of weights", formula="d", paper="none", invariant=EVERY,
    misleads="Always.",
)
def size(workspace):
    count = sum(p.numel() for p in workspace.surface.parameters.values())
    return Measured(Measurement("{name}", float(count), exact=True))
"""

WITH_OPTION = """
from spiritlevel.measures import EVERY, Measured, Measurement, Option, measure
from spiritlevel.need import number

RADIUS = Option("my_radius", 0.1, number(above=0), "a number above 0", "size of the ball")

@measure(
    name="mine.ball", summary="The radius", formula="r", paper="none", invariant=EVERY,
    misleads="Always.", options=[RADIUS],
)
def ball(workspace):
    value = workspace.options.my_radius
    return Measured(Measurement("mine.ball", value, exact=True))
"""
USED = """
import torch
import spiritlevel as sl
from spiritlevel.study.settings.measuring import MeasureSettings

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
    MeasureSettings.read({"options": {"my_radius": 0.3}}).arguments,
)
try:
    MeasureSettings.read({"options": {"my_radius": -1}})
except sl.SpiritlevelError as error:
    print(error)
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


def install(folder, module, source, *, group):
    """A package of one module, as pip would have installed it."""
    (folder / f"{module}.py").write_text(textwrap.dedent(source), encoding="utf-8")
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\nmine = {module}\n")


def printed(folder, code):
    """What the code prints in a fresh interpreter that finds the packages in the folder."""
    path = os.pathsep.join([str(folder), str(fresh.SRC)])
    done = fresh.run("-c", code, env={"PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    return done.stdout


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
    assert "'norms.weight' is registered twice: by spiritlevel.measures.norms.cards.weight" in text
    assert "and taken.size. Choose another name." in text


REFUSAL = (
    "The option 'my_radius' must be a number above 0. Got -1. It is size of the ball; default 0.1."
)


def test_an_option_of_a_measure_is_one_in_every_verb(tmp_path):
    install(tmp_path, "mine", WITH_OPTION, group="spiritlevel.measures")
    values, refused = printed(tmp_path, USED).splitlines()
    assert values == "0.3 0.3 0.1 ('mine.ball',) 0.3 0.3 0.3 {}"
    assert refused == f"The study's measure_options cannot be used: {REFUSAL}"


def test_an_option_of_a_measure_is_one_of_the_commands(tmp_path):
    install(tmp_path, "mine", WITH_OPTION, group="spiritlevel.measures")
    shown, measured, refused = printed(tmp_path, COMMANDS).splitlines()
    assert "options my_radius (0.1): size of the ball" in shown
    assert "mine.ball 0.3" in measured
    assert REFUSAL in refused


def test_a_broken_study_package_does_not_keep_anyone_from_measuring(tmp_path):
    install(tmp_path, "broken", "import nothing_of_this_name", group="spiritlevel.studies")
    code = """
import spiritlevel as sl
from spiritlevel.study.registry import study_names
print(len(sl.cards()) > 50)
try:
    study_names()
except sl.SpiritlevelError as error:
    print(error)
"""
    first, second = printed(tmp_path, code).splitlines()
    assert first == "True"
    assert "'spiritlevel.studies', cannot be imported: ModuleNotFoundError" in second


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
