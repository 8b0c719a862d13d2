"""The pages of a comparison and of a spectrum."""

import re

import pytest

from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.pages import report
from spiritlevel.verbs.spectra import Spectrum

pytestmark = pytest.mark.sampled(3)  # the others at night


def test_ranks_disagreements_and_explanations(open_page, rows_of, a_comparison):
    page = open_page(report.html(a_comparison()))
    assert rows_of(page, "rank-table") == [
        ["curvature.trace", "10 #1", "20 #2"],
        ["relative.kappa", "5 #2", "3 #1"],
        ["softmax.gini", "0.2", "0.4"],
    ]
    assert rows_of(page, "matched-rank-table")[0] == ["curvature.trace", "9 #2", "2 #1"]
    assert "without a rank: softmax.gini" in page.locator("#ranks").inner_text()
    lead = page.locator("header.lead > p").inner_text()
    assert re.findall(r"'(\w+)'", lead) == ["adam", "sgd"]
    assert rows_of(page, "ranking-table") == [
        ["adam", "3 #1", "3 #1", "0.4"],
        ["sgd", "5 #2", "5 #2", "0.2"],
    ]
    assert rows_of(page, "pair-table") == [["adam", "sgd", "relative.kappa"]]
    assert rows_of(page, "disagreement-table") == [
        ["adam", "sgd", "relative.kappa", "curvature.trace"]
    ]
    [explained] = rows_of(page, "explained-table")
    assert explained[:4] == ["curvature.trace", "sgd", "adam", "scale"]
    assert "relative.kappa" in explained[4]
    assert rows_of(page, "confounder-table")[0][2:] == ["0.2", "0.4"]
    gini = "Gini impurity of the predictions"
    assert rows_of(page, "also-differing-table") == [
        # at equal confidence the order of the trace turns round, and that of κ stands as it was
        ["curvature.trace", "sgd", "adam", f"{gini} (smaller in 'sgd': 0.2 against 0.4)", "–"],
        ["relative.kappa", "adam", "sgd", "–", "100%"],
    ]
    assert len(rows_of(page, "all-numbers")) == 6

    plot = page.locator("#points")
    plot.scroll_into_view_if_needed()
    plot.locator(".main-svg").first.wait_for()
    assert plot.locator(".ytick text").all_text_contents() == ["sgd", "adam"]
    assert plot.locator(".scatter .point").count() == 4  # each as it is, and at equal confidence
    assert plot.locator(".scatter .errorbar").count() == 4
    type_of = "document.querySelector('#points .js-plotly-plot')._fullLayout.xaxis.type"
    assert page.evaluate(type_of) == "linear"
    plot.get_by_role("button", name="Log", exact=True).click()
    assert page.evaluate(type_of) == "log"
    page.locator("#theme").click()  # drawn again: the choice stays
    assert page.evaluate(type_of) == "log"
    plot.locator("summary").click()
    first = rows_of(page, "points-table")[0]
    # 1.96 × 0.5 on both sides
    assert first == ["curvature.trace", "sgd", "as it is", "10", "9.02", "10.98"]


def test_why_confidence_was_not_matched(a_comparison):
    text = report.html(a_comparison(match=False))
    assert "Not compared at equal confidence: the head is &lt;b&gt;not&lt;/b&gt; linear" in text
    assert "Hollow marks" not in text
    assert "Hollow marks" in report.html(a_comparison())


def test_spectrum(open_page, rows_of, a_spectrum):
    page = open_page(report.html(a_spectrum()))
    assert rows_of(page, "eigenvalue-table") == [
        ["4", "0.001", "0.001", "yes"],
        ["−1", "0.5", "0.5", "no"],
    ]
    assert "Raise max_passes" in page.locator("#result").inner_text()
    lead = page.locator("header.lead > p").inner_text()
    assert "the largest eigenvalue is 4 and the smallest eigenvalue is −1, not all" in lead
    # vectors give 1 and 0.5: mean 0.75, standard error 0.25; 400 eigenvalues: trace 300 ± 100
    assert rows_of(page, "moment-table")[:2] == [
        ["mean", "0.75", "0.25"],
        ["sum, the trace", "300", "100"],
    ]
    plot = page.locator("#density-figure")
    plot.scroll_into_view_if_needed()
    plot.locator(".main-svg").first.wait_for()
    assert plot.locator(".legendtext").all_text_contents() == [
        *("density", "computed one by one", "not converged")
    ]
    type_of = "document.querySelector('#density-figure .js-plotly-plot')._fullLayout.yaxis.type"
    assert page.evaluate(type_of) == "log"
    plot.get_by_role("button", name="Linear").click()
    assert page.evaluate(type_of) == "linear"
    plot.locator("summary").click()
    assert rows_of(page, "density-table")[:2] == [
        ["density", "1", "0", "0.75"],
        ["density", "1", "4", "0.25"],
    ]


def test_half_a_spectrum(a_spectrum):
    whole = a_spectrum()
    alone = report.html(whole.eigenvalues)
    assert "Only the extreme eigenvalues were requested" in alone
    assert "moment-table" not in alone
    density = report.html(whole.density)
    assert "The density covers all 400 eigenvalues, as 2 random vectors" in density
    assert "eigenvalue-table" not in density
    with pytest.raises(SpiritlevelError, match="Got neither"):
        Spectrum()


@pytest.mark.parametrize("named", [True, False])
def test_a_spectrum_from_its_file(tmp_path, a_spectrum, named):
    path = tmp_path / "spectrum.json"
    text = a_spectrum().to_json()
    path.write_text(text if named else text.replace('"format"', '"other"'))
    assert report.html(report.read(path)) == report.html(a_spectrum())
