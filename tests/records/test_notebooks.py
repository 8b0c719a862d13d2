"""Records as a notebook and a plain Python prompt show them, and the pages they become."""

import pytest
import torch
from torch import nn

import fresh
import spiritlevel as sl
from spiritlevel.pages import report as pages

pytestmark = pytest.mark.sampled(2)  # the others at night


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double().eval()


@pytest.fixture(scope="module")
def data():
    return torch.randn(20, 4, generator=torch.Generator().manual_seed(0)).double(), (
        torch.arange(20) % 3
    )


@pytest.fixture(scope="module")
def report(network, data):
    return sl.measure(network, data)


def test_a_measurement_is_a_number(report):
    kappa = report["relative.kappa"]
    assert float(kappa) == kappa.value
    assert max(report.values(), key=float).value == max(m.value for m in report.values())
    assert repr(kappa).startswith(f"Measurement(relative.kappa = {kappa.value:.6g}, exact")
    assert "num_samples" not in repr(kappa)  # settings are in .settings


def test_a_report_at_the_prompt(report):
    shown = repr(report)
    assert shown.startswith("Report(curvature.trace=")
    assert shown.endswith("; 20 samples)")
    assert "\n" not in shown


def test_long_notes_stand_below_the_table(report):
    long = "a long explanation of where this number comes from, and what to do about it"
    noted = {
        name: sl.Measurement(name, 1.0, exact=True, text=long if name > "n" else "short")
        for name in report
    }
    found = sl.Report(noted, layers={}, settings=report.settings, cost=report.cost)
    text = str(found)
    assert text.count(long) == 1
    assert f"[1] {long}" in text.splitlines()
    assert "relative.kappa" in text.split(f"[1] {long}")[0]
    assert max(map(len, text.split("[1] a long")[0].splitlines())) < 80


def test_a_report_in_a_notebook_is_a_table(report):
    html = report._repr_html_()
    assert html.startswith("<table>")
    assert html.count("<tr>") == len(report) + 1
    assert f"{report['head.lambda_max'].value:.6g}" in html


def test_what_comes_from_outside_is_text():
    hostile = "<script>alert(1)</script>"
    m = sl.Measurement(hostile, 1.0, exact=True)
    found = sl.Report({hostile: m}, layers={}, settings={"num_samples": 1}, cost=sl.results.Cost())
    assert hostile not in found._repr_html_()
    assert "&lt;script&gt;" in found._repr_html_()


def test_a_record_writes_its_own_page(report, tmp_path):
    path = tmp_path / "page.html"
    text = report.to_html(path, title="Run 7")
    assert path.read_text("utf-8") == text == pages.html(report, title="Run 7")
    assert report.to_html() == pages.html(report)


def test_other_records_too(network, data, tmp_path):
    records = [
        sl.compare({"a": network, "b": network}, data, measures="head.kappa"),
        sl.audit(network, data, measures="head.kappa"),
        sl.eigenvalues(network, data, num=1),
    ]
    for record in records:
        assert "<table>" in record._repr_html_()
        assert len(repr(record)) < 400
        assert " object at 0x" not in repr(record)
        assert record.to_html() == pages.html(record)


def test_pages_load_only_when_asked_for():
    code = "import sys, spiritlevel\nprint('spiritlevel.pages.report' in sys.modules)"
    assert fresh.run("-c", code).stdout == "False\n"
