"""Packages that add measures or studies, and what is said if they cannot be used."""

import os
import pathlib
import textwrap

import pytest

import fresh

MEASURE = """
from spiritlevel.measures import EVERY, Measured, Measurement, Needs, measure

@measure(
    name="{name}", summary="Number of weights", formula="d", paper="none", invariant=EVERY,
    misleads="Always.", needs=Needs(), default=False,
)
def size(workspace):
    count = sum(p.numel() for p in workspace.surface.parameters.values())
    return Measured(Measurement("{name}", float(count), exact=True, settings=workspace.settings()))
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


def test_a_broken_study_package_does_not_keep_anyone_from_measuring(tmp_path):
    install(tmp_path, "broken", "import nothing_of_this_name", group="spiritlevel.studies")
    code = """
import spiritlevel as sl
from spiritlevel_lab.population.registry import study_names
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
