"""The tables of penalties in reproduction/penalties.md are made from the record of the runs."""

import json
import pathlib
import runpy
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
USES = ROOT / "experiments" / "uses"
RECORD = ROOT / "experiments" / "results" / "uses" / "penalties.json"


@pytest.fixture
def scripts(monkeypatch):
    """The scripts, which import each other as scripts do; none of them stays imported."""
    pytest.importorskip("scipy")
    monkeypatch.syspath_prepend(str(USES))
    before = set(sys.modules)
    yield {name: runpy.run_path(str(USES / f"{name}.py")) for name in ("tables", "penalties")}
    for name in {path.stem for path in USES.glob("*.py")} - before:
        sys.modules.pop(name, None)


def test_the_page_shows_what_was_recorded(scripts):
    recorded = json.loads(RECORD.read_text("utf-8"))
    page = (ROOT / "reproduction" / "penalties.md").read_text("utf-8")
    for part in recorded["rates"].values():
        table = "\n".join(scripts["tables"]["penalties"](part))
        assert f"\n\n{table}\n\n" in page


def test_the_record_is_of_the_settings_and_methods_of_the_script(scripts):
    recorded = json.loads(RECORD.read_text("utf-8"))
    made = scripts["penalties"]
    settings = vars(made["Settings"]())
    assert recorded["settings"] == settings | {"rates": list(settings["rates"])}
    assert list(recorded["rates"]) == [f"{rate:g}" for rate in settings["rates"]]
    for part in recorded["rates"].values():
        runs = [(row["method"], row["seed"]) for row in part["rows"]]
        assert sorted(runs) == sorted((name, seed) for name in made["METHODS"] for seed in range(5))
        for name, found in made["summary"](part["rows"]).items():
            for key, value in part["summary"][name].items():
                # rows have six digits, of which nearly equal ones leave an interval three
                assert found[key] == pytest.approx(value, rel=1e-3, abs=1e-6), (name, key)
