"""The pictures of a study's page in Chromium: every view, sorting, a phone, hostile names."""

import dataclasses
import json

import pytest
import scipy.stats

from pages.planted_stores import column, parts, planted, unfinished
from spiritlevel.pages.report import render
from spiritlevel_lab.pages.report.study import page_of
from spiritlevel_lab.population.population import Population

pytestmark = pytest.mark.sampled(3)  # the others at night

HOSTILE = "<img src=x onerror=alert(1)>"
LINK = "<a href='https://evil'>l</a>"  # of the few tags that Plotly would read


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    with unfinished(tmp_path_factory.mktemp("small")) as store:
        yield store


@pytest.fixture(scope="module")
def page(small):
    return page_of(small)


@pytest.fixture(scope="module")
def done(small):
    return Population.of(small).done


def caption(shown) -> str:
    return shown.locator("#scatter .plot [role=status]").inner_text()


def draw_all(shown) -> None:
    shown.evaluate("document.querySelectorAll('section > details').forEach(d => d.open = true)")
    for figure in shown.locator("figure").all():
        figure.scroll_into_view_if_needed()
        figure.locator(".main-svg").first.wait_for()


@pytest.mark.nightly
def test_every_view_can_be_chosen(open_page, page, done):
    shown = open_page(render(page))
    draw_all(shown)
    for choice in shown.locator("figure select").all():
        for option in choice.locator("option").all():
            choice.select_option(value=option.get_attribute("value"))
    for name in ("Log", "Density", "Points", "Linear"):
        for button in shown.get_by_role("button", name=name, exact=True).all():
            button.click()
            assert button.get_attribute("aria-pressed") == "true"

    measure, target = (shown.locator("#scatter select").nth(i) for i in (0, 1))
    measure.select_option(label="relative.kappa")
    target.select_option(label="test_error")
    rho = scipy.stats.spearmanr(column(done, "relative.kappa"), column(done, "test_error"))
    assert caption(shown).startswith(
        f"relative.kappa and test_error: Spearman's ρ = {rho.statistic:+.2f}".replace("-", "−")
    )
    assert "test_error ≈" in caption(shown)
    axis = shown.locator("#scatter .ytitle").inner_html()
    assert "1 − test accuracy" in axis
    points = shown.locator("#scatter .points path").count()
    assert points == len(done)

    shown.locator("#scatter").get_by_role("button", name="Density").click()
    assert shown.locator("#scatter .hm image").count() == 1
    before = shown.locator("#boxes .main-svg").first.get_attribute("style")
    shown.locator("#theme").click()
    assert shown.locator("#boxes .main-svg").first.get_attribute("style") != before


@pytest.mark.parametrize("width", [1100, 375])
def test_names_of_settings_leave_room_for_the_points(open_page, tmp_path, width):
    grid = {"lr": [0.1, 0.01], "batch_size": [16, 64], "weight_decay": [0.0, 0.001]}
    with planted(tmp_path, grid=grid) as store:
        shown = open_page(render(page_of(store)), width=width)
    draw_all(shown)
    assert shown.locator("#scatter .legendtext").count() == 9  # eight settings and a line
    assert shown.locator("#scatter .nsewdrag").first.bounding_box()["height"] > 200


@pytest.mark.parametrize("width", [1280, 400])
def test_names_in_the_first_picture_do_not_collide(open_page, page, width):
    shown = open_page(render(page), width=width)
    shown.locator("#outcomes").scroll_into_view_if_needed()
    shown.locator("#outcomes .main-svg").first.wait_for()
    boxes = shown.evaluate(
        """() => [...document.querySelectorAll("#outcomes .main-svg text")]
             .map(e => e.getBoundingClientRect()).filter(b => b.width)
             .map(b => [b.left, b.top, b.right, b.bottom])"""
    )
    frame = shown.locator("#outcomes .plot").bounding_box()
    assert len(boxes) > 3 * 5 + 3
    for i, (left, top, right, bottom) in enumerate(boxes):
        assert frame["x"] - 1 <= left < right <= frame["x"] + frame["width"] + 1
        for other in boxes[:i]:
            apart = left >= other[2] or other[0] >= right or top >= other[3] or other[1] >= bottom
            assert apart, (boxes[i], other)


def test_correlations_are_sorted_as_numbers(open_page, page, done):
    shown = open_page(render(page))
    heading = shown.locator("#correlations").get_by_role("button", name="ρ").first
    heading.click()
    found = [cell.inner_text() for cell in shown.locator("#correlations tbody th").all()]
    gap = column(done, "gap")
    rho = {name: scipy.stats.spearmanr(column(done, name), gap).statistic for name in found}
    assert found == sorted(rho, key=rho.__getitem__)
    heading.click()
    again = [cell.inner_text() for cell in shown.locator("#correlations tbody th").all()]
    assert again == found[::-1]


def test_log_axis_is_refused_where_numbers_are_not_positive(open_page, page):
    scatter = parts(page)["scatter"]
    data = json.loads(json.dumps(scatter.data))
    data["measures"][data["chosen"]["measure"]]["values"][:2] = [-1.0, 0.0]
    changed = dataclasses.replace(scatter, data=data)
    sections = [
        dataclasses.replace(s, parts=[changed if p is scatter else p for p in s.parts])
        for s in page.sections
    ]
    shown = open_page(render(dataclasses.replace(page, sections=sections)), width=375)
    draw_all(shown)
    shown.locator("#scatter").get_by_role("button", name="Log").click()
    assert "stays linear: 2 of its 21 values are not positive" in caption(shown)
    assert shown.evaluate("document.documentElement.scrollWidth") <= 375


def test_hostile_names_are_only_text(open_page, tmp_path):
    store = planted(
        tmp_path,
        name=HOSTILE,
        description=HOSTILE,
        grid={"model.kind": [LINK, "</script><script>alert(2)</script>"], "lr": [0.1, 0.01]},
        names=("relative.kappa", HOSTILE, LINK),
        layers=(HOSTILE, LINK),
        failed=1,
    )
    with store:
        shown = open_page(render(page_of(store)))
    draw_all(shown)
    shown.locator("#scatter select").first.select_option(label=LINK)
    assert caption(shown).startswith(f"{LINK} and gap")
    seen = {
        "#scatter .xtitle": LINK,
        "#scatter .legendtitletext": "model.kind, lr",
        "#scatter .legendtext": f"{LINK}, 0.1",
        "#heatmap .xaxislayer-above": LINK,
        "#heatmap .yaxislayer-above": HOSTILE,
        "#layers .xaxislayer-above": LINK,
        "#boxes .xaxislayer-above": LINK,
    }
    for place, name in seen.items():
        assert name in shown.locator(place).first.text_content(), place
    assert HOSTILE in shown.locator("h1").text_content()
    assert shown.locator("img, svg a, main a[href*=evil]").count() == 0
