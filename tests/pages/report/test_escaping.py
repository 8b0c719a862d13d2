"""A name from a file does nothing but appear as text, on every kind of page."""

import pytest

from spiritlevel.content import Cards, Chart, Column, Page, Section, Table, Text
from spiritlevel.pages import report
from spiritlevel.pages.report import page

pytestmark = pytest.mark.sampled(2)  # the others at night

IMAGE = "<img src=x onerror=alert(1)>"
SCRIPT = "</script><script>alert(1)</script>"
QUOTE = '" autofocus onfocus="alert(1)'  # would end an attribute and start another
LINK = "<a href='javascript:alert(1)'>x</a><b>y</b>"  # Plotly itself would make a link of this
COUNTS = """['img', 'main li b', 'main td b', 'svg a', 'a[href^=javascript]']
  .map(selector => document.querySelectorAll(selector).length)"""


def everything(page):
    """Every text that the page shows, pictures too."""
    for plot in page.locator(".plot").all():
        plot.scroll_into_view_if_needed()
        plot.locator(".main-svg").first.wait_for()
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    page.wait_for_timeout(50)
    return page.evaluate("document.body.textContent")


@pytest.mark.parametrize("hostile", [IMAGE, SCRIPT, QUOTE], ids=["image", "script", "quote"])
def test_parts_of_a_page(open_page, hostile):
    table = Table(
        [Column(hostile, hostile)], [[hostile], [2.0]], id="t", title=hostile, caption=hostile
    )
    text = page.render(
        Page(
            hostile,
            hostile,
            {hostile: hostile},
            [
                Section("s", hostile, [table, Text([hostile]), Text([hostile], True)]),
                Section("o", "Other", [Text(["<i>no card has this name</i>"])]),
                Section("c", "Cards", [Cards([hostile])]),
            ],
        )
    )
    assert hostile not in text
    shown = open_page(text)
    assert shown.title() == hostile
    shown.locator("#t th button").first.focus()
    assert shown.locator("#tip").inner_text() == hostile
    assert everything(shown).count(hostile) >= 12
    shown.locator("main a").first.click()  # to the card, whose id is made of the name
    assert shown.locator("details[open] b").inner_text() == hostile
    assert shown.evaluate("document.querySelectorAll('img, i').length") == 0


def test_pictures(open_page, a_report, an_audit, a_comparison, a_spectrum):
    """Layer, measure, move, network and parameter; one page for all kinds of pictures."""
    sources = [
        a_report(trace=IMAGE, layer=LINK, text=SCRIPT),
        an_audit(trace=SCRIPT, move=IMAGE),
        a_comparison(first=IMAGE, second=LINK),
        a_spectrum(parameter=IMAGE),
    ]
    sections = []
    for i, source in enumerate(sources):
        for j, section in enumerate(report.page_of(source, title=IMAGE).sections):
            parts = [_renamed(part, f"p{i}{j}{k}") for k, part in enumerate(section.parts)]
            sections.append(Section(f"s{i}{j}", section.title, parts))
    text = page.render(Page(IMAGE, LINK, {}, sections))
    assert IMAGE not in text
    assert SCRIPT not in text
    shown = open_page(text)
    found = everything(shown)
    for name in (IMAGE, SCRIPT, LINK):
        assert name in found
    # in the pictures too: the layer, the measure on the axis, the networks
    shown.get_by_label("Measure", exact=True).first.select_option(IMAGE)
    labels = shown.evaluate("[...document.querySelectorAll('svg text')].map(e => e.textContent)")
    assert labels.count(IMAGE) == 3  # measure of the bars, move of the matrix, network
    assert sum(label.startswith("<a href='java") for label in labels) == 2  # layer, network
    assert sum(label.startswith("</script>") for label in labels) == 2  # measure of matrix and bars
    assert shown.evaluate(COUNTS) == [0, 0, 0, 0, 0]
    assert shown.locator("select option", has_text=IMAGE).count() == 1


def _renamed(part, identifier):
    """The same part under an id of its own."""
    if isinstance(part, Table):
        return Table(part.columns, part.rows, id=identifier, title=part.title, caption=part.caption)
    if isinstance(part, Chart):
        table = _renamed(part.table, f"{identifier}-t")
        return Chart(identifier, part.title, part.kind, part.data, table, part.caption)
    return part
