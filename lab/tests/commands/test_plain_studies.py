"""Names of studies and texts of their failures are shown as they are, and no formulas."""

import csv
import json
import pathlib

import pytest

from command_line import run as command
from population.tiny_study import seal, tiny
from spiritlevel_lab import Store, run
from spiritlevel_lab.population.export import export

MARKUP = ["sgd [/lr]", "[bold]x", "[/]", "[link=file:///etc/passwd]x", "a[", "\\[x]", ":smile:"]
SMALL = {"grid": {}, "seeds": 1, "training": {"epochs": 1}}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", MARKUP)
def test_a_study_with_brackets_in_its_name_is_run_and_reported(tmp_path, name):
    if name.startswith("\\"):  # on Windows the name of a folder cannot
        name = f"x{name}"
    path = tmp_path / "study.yaml"
    fields = tiny(**SMALL).to_dict() | {"name": name, "seeds": 3, "description": name}
    path.write_text(json.dumps(fields))
    out = tmp_path / "out [/red]"
    said = command("study", "run", path, "--out", out).stdout
    assert f"{name}: 3 of 3 runs done" in said
    assert f"{name}: 3 of 3 runs done" in command("study", "status", out).stdout
    assert f"{name}: No measure can" in command("study", "report", out).stdout


def test_exported_tables_hold_no_formulas(tmp_path):
    study = tiny(**(SMALL | {"variants": {"=1+1": {"lr": 0.1}, "@x": {"lr": 0.2}}}))
    with run(study, tmp_path / "store") as store:
        claimed = store.rows("runs")[0]["id"]
        store._connection.execute("UPDATE runs SET error = '=HYPERLINK(1)', outcome = '-2+3'")
        store._connection.execute("UPDATE measurements SET layer = '+' || layer WHERE layer != ''")
        seal(tmp_path / "store")
        paths = export(store, tmp_path / "tables")
    tables = [pathlib.Path(path).read_text().splitlines() for path in paths]
    cells = [text for table in tables for row in csv.reader(table) for text in row]
    assert claimed in cells
    assert {"'=1+1", "'@x", "'=HYPERLINK(1)", "'-2+3", "'+head"} <= set(cells)
    for text in cells:
        assert not text.startswith(("=", "+", "@"))
        assert not text.startswith("-") or float(text) < 0


def test_the_store_is_opened_by_a_reader_of_hostile_text(tmp_path):
    """Failures are texts of a user's code: the status shows them as they are."""
    with Store.create(tmp_path, tiny(**SMALL)) as store:
        text = "broken [/red] \x1b[2J"
        store._connection.execute("UPDATE runs SET status = 'failed', error = ?", (text,))
    said = command("study", "status", tmp_path).stdout
    assert "broken [/red] \\x1b[2J" in said
