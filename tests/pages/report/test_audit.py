"""The page of an audit."""

import pytest

from spiritlevel.pages import report
from spiritlevel.results import Audit

pytestmark = pytest.mark.sampled(2)  # the others at night


def test_verdicts_matrix_and_confounders(open_page, rows_of, an_audit):
    page = open_page(report.html(an_audit()))
    verdicts = {row[0]: row[1:] for row in rows_of(page, "verdict-table")}
    assert verdicts == {
        "curvature.trace": ["4", "25", "=", "changes", "unchanged", "scale"],
        "relative.kappa": ["2", "=", "=", "unchanged", "unchanged", "comparable"],
        "softmax.gini": ["0.5", "=", "0.5", "–", "–", "confounder"],
        "sharpness.worst": ["1", "?", "=", "open", "unchanged", "open"],
    }
    lead = page.locator("header.lead > p").inner_text()
    assert lead.startswith("1 of 3 measures keeps its value")
    blocks = [f"bert.encoder.layer.{i}.attention.self.query" for i in (0, 1)]
    assert len(set(page.evaluate("names => spiritlevel.distinct(names)", blocks))) == 2
    assert "other weights: relative.kappa. 1 changes although" in lead
    plot = page.locator("#matrix")
    plot.scroll_into_view_if_needed()
    plot.locator(".textpoint text").first.wait_for()
    # measure by measure: under the rescaling, then under the temperature
    assert plot.locator(".textpoint text").all_text_contents() == [
        *("25", "=", "=", "=", "=", "0.5", "?", "=")
    ]
    columns = ["layerrescale", "logittemperature*"]  # * changes confidence; lines break at "_"
    assert [text.replace("\n", "") for text in plot.locator(".xtick text").all_text_contents()] == (
        columns
    )
    plot.locator("summary").click()
    assert rows_of(page, "matrix-table")[0] == [
        *("curvature.trace", "layer_rescale", "4", "100", "25", "yes")
    ]
    assert rows_of(page, "matrix-table")[6][-1] == "not decided"
    found = page.locator("#verdicts").inner_text()
    assert "Gini impurity of the predictions (softmax.gini) is 0.5; 0.5 times under" in found
    assert "layer_rescale: multiply 'a' by α." in found
    assert "batchnorm_absorb does not apply to this network: there is no BatchNorm." in found


def test_symmetries_that_were_missed_are_named(an_audit):
    found = an_audit()
    audit = Audit(
        found.original,
        found.moved,
        moves=found.moves,
        absent=found.absent,
        unexplored="5 further directions keep the outputs",
    )
    html = report.html(audit)
    assert "Not all symmetries were tested: 5 further directions keep the outputs." in html
    assert audit.verdict("relative.kappa").kind == "untested"


def test_a_network_without_symmetries(an_audit):
    found = an_audit()
    page = report.page_of(Audit(found.original, {}, moves={}, absent=found.absent))
    assert page.lead.startswith("No symmetry was found")
    assert "factors" not in [section.id for section in page.sections]
    assert report.render(page)


def test_a_factor_without_a_logarithm_is_still_shown(an_audit):
    found = an_audit()
    data = found.to_dict()
    data["moved"]["layer_rescale"][1]["measures"]["curvature.trace"]["value"] = -100.0
    data["original"]["measures"]["relative.kappa"]["value"] = 0.0
    [figure] = next(
        section.parts
        for section in report.page_of(Audit.from_dict(data)).sections
        if section.id == "factors"
    )
    assert figure.data["texts"][0][0] == "−25"
    assert figure.data["texts"][1][0] == "∞"
    assert figure.data["powers"][0][0] is None


def test_an_audit_from_its_file(tmp_path, an_audit):
    path = tmp_path / "audit.json"
    path.write_text(an_audit().to_json())
    assert report.html(report.read(path)) == report.html(an_audit())


def test_a_temperature_does_not_bleach_the_matrix(open_page, an_audit):
    """392 times under a rescaling is dark, even where a temperature divides by 10¹⁶."""
    data = an_audit().to_dict()
    data["moved"]["layer_rescale"][1]["measures"]["curvature.trace"]["value"] = 4.0 * 392
    data["moved"]["logit_temperature"][0]["measures"]["curvature.trace"]["value"] = 4e-16
    page = open_page(report.html(Audit.from_dict(data)))
    plot = page.locator("#matrix")
    plot.scroll_into_view_if_needed()
    plot.locator(".textpoint text").first.wait_for()
    trace = "document.querySelector('#matrix .js-plotly-plot').data[0]"
    limit = page.evaluate(f"{trace}.zmax")
    assert 2.5 < limit <= 3  # log10 of 392 is 2.59
    assert page.evaluate(f"{trace}.z[0][0]") > 0.8 * limit
    assert page.evaluate(f"{trace}.z[0][1]") == -limit
    assert page.evaluate(f"{trace}.colorbar.ticktext") == ["÷ 100", "1", "× 100"]
