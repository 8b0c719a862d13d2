"""Files that earlier versions wrote are read: `written/` holds some, and is never written anew.

A file of a format that changes gets a neighbour; it is not replaced.
"""

import json
import pathlib

import pytest

import spiritlevel as sl
from spiritlevel.pages import report as pages

WRITTEN = pathlib.Path(__file__).parent / "written"
FILES = sorted(WRITTEN.glob("*.json"))


def test_there_is_a_file_of_every_kind():
    kinds = {json.loads(path.read_text())["format"].rsplit("-", 1)[0] for path in FILES}
    assert kinds == {
        f"spiritlevel-{kind}" for kind in ("report", "comparison", "audit", "spectrum")
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_is_read_and_makes_a_page(path):
    result = pages.read(path)
    assert pages.html(result).startswith("<!doctype html>")


def test_a_comparison_from_before_networks_were_audited_is_read_by_the_cards():
    found = sl.results.Comparison.from_json((WRITTEN / "comparison.json").read_text())
    assert "answer" not in json.loads((WRITTEN / "comparison.json").read_text())
    assert "head.kappa (by its card under neuron_rescale)" in str(found)


def test_a_report_from_before_it_named_its_subject():
    found = sl.Report.from_json((WRITTEN / "report.json").read_text())
    assert "subject" not in found.settings
    assert "model" not in pages.page_of(found).facts
    assert found["head.kappa"].value == pytest.approx(
        json.loads((WRITTEN / "report.json").read_text())["measures"]["head.kappa"]["value"]
    )


def test_a_format_of_the_future_is_refused_with_advice(tmp_path):
    data = json.loads((WRITTEN / "report.json").read_text()) | {"format": "spiritlevel-report-99"}
    path = tmp_path / "report.json"
    path.write_text(json.dumps(data))
    with pytest.raises(sl.SpiritlevelError, match="spiritlevel-report-99"):
        pages.read(path)
