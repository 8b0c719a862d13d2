"""The page of a measurement, and the command that writes pages."""

import dataclasses
import json
import re

import pytest

import spiritlevel as sl
from command_line import run
from spiritlevel import Report
from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.pages import report
from spiritlevel.pages.report import numbers
from spiritlevel.pages.report.numbers import certainty

pytestmark = pytest.mark.sampled(2)  # the others at night


@pytest.mark.parametrize("status", [s for s in sl.results.Status if s is not sl.results.Status.OK])
def test_a_value_that_is_not_fine_says_so(status):
    found = sl.results.Measurement("curvature.trace", 1.0, exact=False, status=status)
    text = numbers.status_text(found)
    assert text not in ("exact", "estimated", "within its residual")
    assert f"{text}:" in numbers.STATUS.help or status is sl.results.Status.NONFINITE


def test_every_number_says_what_it_is(open_page, rows_of, a_report):
    page = open_page(report.html(a_report(text="64 probes")))
    rows = {row[0]: row[1:] for row in rows_of(page, "measures")}
    assert rows == {
        "curvature.trace": ["10", "estimated", "9", "11", "–", "1200", "64 probes"],
        "relative.kappa": ["2.5", "exact", "–", "–", "0.75", "1200", "–"],
        "curvature.lambda_max": ["3", "within its residual", "2.75", "3.25", "0.12", "1200", "–"],
        "sharpness.average": ["7", "not converged", "–", "–", "–", "1200", "–"],
        "head.trace": ["∞", "not finite", "–", "–", "–", "1200", "–"],
        "curvature.ggn_trace": ["4", "of the GGN", "–", "–", "–", "1200", "–"],
    }
    lead = page.locator("header.lead > p").inner_text()
    assert "relative.kappa is 2.5 (exact)" in lead
    assert "curvature.trace is 10 (between 9 and 11)" in lead
    page.locator("details.settings > summary").click()  # closed until somebody asks
    facts = dict(
        zip(
            page.locator(".facts dt").all_inner_texts(),
            page.locator(".facts dd").all_inner_texts(),
            strict=True,
        )
    )
    assert facts["samples (n)"] == "1,200"
    assert facts["layers"] == "first, last"
    assert facts["counted cost"] == "2 forwards over the data"
    costs = {row[0]: row[1:] for row in rows_of(page, "costs")}
    assert costs["sharpness.average"] == ["1", "3", "0", "rho = 0.05"]
    misleading = page.locator("#caveats").inner_text()
    [card] = sl.cards("curvature.trace")
    assert f"{card.name}: {card.misleads.partition('.')[0]}" in misleading

    # the layers: one picture, a choice of measures
    plot = page.locator("#layers-profile")
    plot.scroll_into_view_if_needed()
    plot.locator(".main-svg").first.wait_for()

    def labels():
        return plot.locator(".ytick text").all_text_contents()

    assert labels() == ["first"]  # κ, which has one layer here
    plot.get_by_label("Measure", exact=True).select_option("curvature.trace")
    assert labels() == ["first", "last"]
    assert plot.locator(".bars .point").count() == 2
    plot.get_by_label("Measure", exact=True).select_option("relative.kappa")
    plot.locator("summary").click()
    assert rows_of(page, "layers-table")[1] == [
        *("first", "curvature.trace", "8", "estimated", "9", "11", "1200", "64 probes")
    ]
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_a_phone_scrolls_tables_and_not_the_page(open_page, a_report):
    long = "encoder.layers.11.self_attention.output.projection.weight" * 3
    page = open_page(report.html(a_report(layer=long, text="word " * 60)), width=360, dark=True)
    page.locator("#layers-profile").scroll_into_view_if_needed()
    page.locator("#layers-profile .main-svg").first.wait_for()
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    box = page.locator("#measures .scroll")
    assert box.evaluate("e => e.scrollWidth > e.clientWidth")


def test_a_report_without_layers_has_no_profile(a_report):
    whole = a_report()
    bare = Report(dict(whole), layers={}, settings=whole.settings, cost=whole.cost)
    assert "layers" not in [section.id for section in report.page_of(bare).sections]
    assert "layers" in [section.id for section in report.page_of(whole).sections]


def test_the_interval_of_ranks_holds_both_errors(a_report):
    # 1.959964 standard errors of 0.125, and the residual of 0.25
    low, high = numbers.with_data(a_report()["curvature.lambda_max"])
    assert (3.0 - low, high - 3.0) == pytest.approx((0.4949955, 0.4949955))


def test_what_has_no_page_is_refused():
    with pytest.raises(SpiritlevelError, match=r"Got dict\. Pass what"):
        report.html({"a": 1})


# -- the command -------------------------------------------------------------------------------


def test_command_writes_the_page_and_says_where(tmp_path, a_report):
    source, out = tmp_path / "measured.json", tmp_path / "new" / "page.html"
    source.write_text(a_report().to_json())
    said = run("report", source, "--out", out, "--title", "Run <7>").stdout
    assert f"written: {out}" in said.replace("\n", "")
    text = out.read_text(encoding="utf-8")
    assert text == report.html(a_report(), title="Run <7>")
    assert "<h1>Run &lt;7&gt;</h1>" in text
    assert [path.name for path in out.parent.iterdir()] == ["page.html"]
    result = run("report", source, "--out", "-", "--title", "Run <7>")
    assert result.stdout == text
    assert result.stderr == ""


def test_command_gives_the_page_as_data(tmp_path, a_report):
    source, out = tmp_path / "measured.json", tmp_path / "page.html"
    source.write_text(a_report().to_json())
    result = run("report", source, "--out", out, "--json", "-")
    page = json.loads(result.stdout)
    assert page["format"] == "spiritlevel-page-1"
    rows = page["sections"][1]["parts"][0]["rows"]
    assert [row[:2] for row in rows][3:5] == [["sharpness.average", 7.0], ["head.trace", None]]
    assert out.exists()


def with_subject(a_report, **facts):
    found = a_report()
    rows = {"wide": 6.0, "thin": 1.5, "head": 2.5}
    kappa = found["relative.kappa"]
    return sl.Report(
        dict(found) | {"softmax.gini": sl.Measurement("softmax.gini", 0.004, exact=True)},
        layers={
            "relative.kappa": {n: dataclasses.replace(kappa, value=v) for n, v in rows.items()}
        },
        settings=found.settings | {"num_outputs": 4, "subject": facts},
        cost=found.cost,
    )


def test_the_first_screen_answers(a_report):
    subject = {
        "model": "nets:make",
        "model_arguments": ["width=8"],
        "checkpoint": "runs/<7>.pt",
        "trained": True,
        "data": "60 samples of val.npz",
        "mean_loss": 0.25,
        "accuracy": 0.9375,
    }
    page = report.page_of(with_subject(a_report, **subject))
    layers, certainty, success = page.highlights[:3]
    assert re.findall(r"(\w+) \((\d+%)\)", layers) == [
        ("wide", "60%"),
        ("head", "25%"),
        ("thin", "15%"),
    ]
    assert re.findall(r"[\d.]+\d", certainty) == ["0.004", "0.75"]
    assert re.findall(r"[\d.]+\d", success) == ["0.25", "93.75"]
    assert len(page.highlights) == 4  # and one caveat
    shown = {key: page.facts[key] for key in ("model", "checkpoint", "data", "loss", "accuracy")}
    assert shown == {
        "model": "nets:make width=8",
        "checkpoint": "runs/<7>.pt",
        "data": "60 samples of val.npz",
        "loss": "0.25",
        "accuracy": "93.75 %",
    }
    assert page.settings["layers"] == "first, last"  # folded up
    assert "runs/&lt;7&gt;.pt" in report.html(with_subject(a_report, **subject))


@pytest.mark.parametrize(
    ("trained", "said"), [(False, "is not trained"), (None, "No checkpoint was loaded")]
)
def test_an_untrained_network_says_so_on_the_page(a_report, trained, said):
    page = report.page_of(with_subject(a_report, model="mlp", checkpoint=None, trained=trained))
    assert said in page.highlights[-1]
    assert page.facts["checkpoint"].startswith("none")


def test_how_certain_in_words():
    words = [certainty(gini, 4).split(":")[0] for gini in (0.001, 0.05, 0.3, 0.74)]
    assert [word.removeprefix("The network is ") for word in words] == [
        *("very certain", "certain", "not very certain", "uncertain")
    ]


def damaged(text, path, value):
    """The JSON text with the entry at `path` replaced; left out where `value` is None."""
    data = json.loads(text)
    *way, last = path
    inner = data
    for key in way:
        inner = inner[key]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return json.dumps(data)


MEASURE = ("measures", "relative.kappa")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t[: len(t) // 2], "is not complete JSON"),
        (lambda t: "[1, 2]", "JSON that names no format"),
        (lambda t: damaged(t, ["format"], "spiritlevel-report-2"), "pip install -U spiritlevel"),
        (lambda t: damaged(t, ["format"], "other-1"), "the format 'other-1'"),
        (lambda t: damaged(t, ["measures"], None), "damaged or was edited: the report"),
        (lambda t: damaged(t, [*MEASURE, "status"], "fine"), "status must be one of ok, ggn"),
        (lambda t: damaged(t, [*MEASURE, "value"], "soft"), "measurement.value must be"),
        (lambda t: damaged(t, ["settings", "num_samples"], None), "the report's settings"),
        (lambda t: damaged(t, ["settings", "num_samples"], -1), "the report's settings"),
    ],
)
def test_a_file_that_is_none_of_ours(tmp_path, a_report, change, said):
    source, out = tmp_path / "measured.json", tmp_path / "page.html"
    source.write_text(change(a_report().to_json()))
    result = run("report", source, "--out", out, code=1)
    assert result.stdout == ""
    assert result.stderr.startswith(f"error: The file {str(source)!r}")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert not out.exists()


def test_other_refusals_of_the_command(tmp_path, a_report):
    source = tmp_path / "measured.json"
    source.write_text(a_report().to_json())
    absent = run("report", tmp_path / "absent.json", code=1).stderr
    assert "cannot be read: No such file or directory. It must be what a command wrote" in absent
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    assert "it is not text" in run("report", tmp_path / "binary", code=1).stderr
    assert "must be a file" in run("report", source, "--out", tmp_path, code=2).stderr
    assert "needs a study's folder" in run("report", source, "--target", "gap", code=2).stderr
    assert "Only one of" in run("report", source, "--out", "-", "--json", "-", code=2).stderr
