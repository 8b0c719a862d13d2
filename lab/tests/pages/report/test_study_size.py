"""A large study still makes a page that can be sent and opened."""

import pytest

from pages.planted_stores import big
from spiritlevel.pages.report import render
from spiritlevel_lab.pages.report.study import page_of


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    with big(tmp_path_factory.mktemp("big")) as store:
        assert (store.counts().done, len({r["measure"] for r in store.rows("measurements")})) == (
            500,
            30,
        )
        return render(page_of(store))


@pytest.mark.nightly
def test_page_of_a_large_study_is_small(html):
    assert len(html.encode()) < 12e6


@pytest.mark.nightly
def test_page_of_a_large_study_opens(html, open_page, record_property):
    shown = open_page(html)
    shown.locator("#scatter .main-svg").first.wait_for()
    # Since the page was asked for; a busy machine makes it long, so it is noted and not judged.
    record_property("milliseconds_to_first_picture", shown.evaluate("() => performance.now()"))
    assert shown.locator("#scatter .points path").count() == 500
    shown.locator("#heatmap").scroll_into_view_if_needed()
    shown.locator("#heatmap .hm image").wait_for()
    assert shown.locator("#heatmap .ytick > text").count() == 30
