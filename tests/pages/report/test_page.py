"""The frame of every page: one file that is safe, sortable, printable and usable by keyboard."""

import base64
import csv
import dataclasses
import hashlib
import io
import json
import os
import re
import subprocess
import sys

import pytest

from spiritlevel.ground.errors import MissingExtra, SpiritlevelError
from spiritlevel.pages.report import formula, markup, page, scripts
from spiritlevel.records.content import Cards, Chart, Column, Page, Section, Table, Text
from spiritlevel.verbs import measuring as api

pytestmark = pytest.mark.sampled(3)  # the others at night

ROWS = [
    ["beta", 2.0, "=HYPERLINK(1)"],
    ["alpha", 10.123456789, 'say "a", b'],
    ["delta", None, None],
    ["gamma", -3.0, "plain"],
    ["epsilon", float("inf"), "10 of 12"],
    ["zeta", float("nan"), "9 of 12"],
]
TABLE = Table(
    [Column("name"), Column("value", "What it is."), Column("note")],
    ROWS,
    id="t",
    title="Things",
    caption="Said.",
)
BARS = {
    "label": "Measure",
    "series": [
        {
            "name": "curvature.trace",
            "names": ["a", "b"],
            "values": [1.0, float("nan")],
            "low": [0.5, None],
            "high": [1.5, None],
            "exact": [False, True],
        }
    ],
}
SMALL = Table([Column("layer")], [["a"]], id="small", title="Data")
FIGURE = Chart("f", "Profile", "bars", BARS, SMALL, "n = 3")


def page_with(*parts, title="A title"):
    sections = [Section("one", "One", parts), Section("two", "Two", [Cards(["relative.kappa"])])]
    return Page(title, "About relative.kappa here.", {"samples": "3"}, sections)


PLAIN = page.render(page_with(TABLE, Text(["See relative.kappa."])))


# -- the file ----------------------------------------------------------------------------------


def test_the_same_page_is_the_same_bytes_in_another_process():
    code = (
        "import sys; sys.path[:0] = ['src', 'tests/pages/report']\n"
        "import test_page as t; html = t.page.render(t.page_with(t.TABLE, t.FIGURE))\n"
        "sys.stdout.buffer.write(html.encode())"
    )
    here = page.render(page_with(TABLE, FIGURE)).encode()
    root = os.path.dirname(
        os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        cwd=root,
        env=os.environ | {"PYTHONHASHSEED": "7"},
    )
    assert done.returncode == 0, done.stderr
    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(here).digest()


def test_plotly_comes_once_and_only_with_a_figure():
    second = Chart("g", "Again", "bars", BARS, Table([Column("x")], [["a"]], id="u", title="Data"))
    with_figures = page.render(page_with(FIGURE, second))
    assert with_figures.count("Licensed under the MIT license\n*/") == 1
    assert with_figures.count("spiritlevel.kinds.bars =") == 1
    assert "spiritlevel.kinds.matrix =" not in with_figures
    assert len(PLAIN) < 60_000


def test_without_plotly_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(MissingExtra, match=r"pip install 'spiritlevel\[report\]'"):
        page.render(page_with(FIGURE))
    assert page.render(page_with(TABLE, Text(["See relative.kappa."]))) == PLAIN


def test_only_the_listed_scripts_may_run_and_nothing_may_be_fetched():
    text = page.render(page_with(FIGURE))
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert "connect-src" not in rules
    found = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in found]
    assert rules["script-src"].split() == [f"'sha256-{value}'" for value in hashes]
    assert len(found) == 5  # early, page, tables, bars, plotly


def test_data_cannot_leave_its_script():
    hostile = {"</script><script>alert(1)</script>": ["<!--\u2028&", float("inf"), (1, None)]}
    text = scripts.data("x", hostile)
    inside = re.fullmatch(r'<script type="application/json" id="x-data">(.*)</script>', text)[1]
    assert not set("<>&\u2028") & set(inside)
    assert json.loads(inside) == {
        "</script><script>alert(1)</script>": ["<!--\u2028&", None, [1, None]]
    }


@pytest.mark.parametrize("bad", ["1st", "a b", "x<y", "one"])
def test_ids_are_plain_and_used_once(bad):
    with pytest.raises(SpiritlevelError, match="occur once") as raised:
        page.render(page_with(Table([Column("x")], [["a"]], id=bad, title="Data")))
    assert repr(bad) in str(raised.value)


def test_a_figure_of_no_kind_is_refused():
    with pytest.raises(SpiritlevelError, match="'pie'"):
        page.render(page_with(Chart("f", "Pie", "pie", {}, SMALL)))


def test_every_formula_is_readable():
    shown = {card.name: formula.to_html(card.formula) for card in api.cards()}
    assert [name for name, text in shown.items() if "\\" in text or "{}" in text] == []
    assert shown["norms.weight"] == "‖θ‖<sub>2</sub>"
    assert shown["activity.death"] == "(∑<sub>l</sub> P<sub>l</sub>)/(∑<sub>l</sub> N<sub>l</sub>)"
    assert formula.to_html(r"\frac{1}{|G|} x^{-2} < y_ab") == (
        "1/(|G|) x<sup>-2</sup> &lt; y<sub>a</sub>b"
    )


def test_names_of_measures_are_links_only_as_whole_words():
    links = {"relative.kappa": "k", "relative.kappa_max": "m"}
    text = markup.linked("xrelative.kappa, relative.kappa_max and relative.kappa.", links)
    assert re.findall(r'href="#(.)"', text) == ["m", "k"]
    assert re.sub(r"<[^>]*>", "", text) == "xrelative.kappa, relative.kappa_max and relative.kappa."


# -- in the browser ----------------------------------------------------------------------------


def test_an_offence_would_be_noticed(open_page):
    # Meta-test: error, request and dialog are each seen.
    html = "<script>alert(1); fetch('http://127.0.0.1:9/').catch(() => 0); nothing()</script>"
    open_page(html).wait_for_timeout(200)
    assert {offence.partition(":")[0] for offence in open_page.offences} == {
        "dialog",
        "request",
        "error",
        "console error",
    }
    open_page.offences.clear()


def test_tables_sort_filter_and_export(open_page, rows_of):
    shown = open_page(PLAIN)

    def names():
        return [row[0] for row in rows_of(shown, "t")]

    heading = shown.locator("#t th", has_text="value")
    assert heading.get_attribute("aria-sort") == "none"
    heading.get_by_role("button").click()
    assert heading.get_attribute("aria-sort") == "ascending"
    assert names() == ["gamma", "beta", "alpha", "epsilon", "delta", "zeta"]
    shown.keyboard.press("Enter")  # the button has the focus
    assert heading.get_attribute("aria-sort") == "descending"
    assert names() == ["epsilon", "alpha", "beta", "gamma", "delta", "zeta"]  # absent: last again
    shown.locator("#t th", has_text="note").get_by_role("button").click()
    assert names().index("zeta") < names().index("epsilon")  # "9 of" before "10 of"
    assert heading.get_attribute("aria-sort") == "none"

    shown.get_by_label("Filter the rows of Things").fill("PLAIN gam")
    assert names() == ["gamma"]
    assert shown.locator("#t .count").inner_text() == "1 of 6 rows"
    shown.get_by_label("Filter the rows of Things").fill("")
    with shown.expect_download() as waiting:
        shown.locator("#t").get_by_text("Download CSV").click()
    assert waiting.value.suggested_filename == "t.csv"
    text = waiting.value.path().read_text(encoding="utf-8")
    heads, *rows = csv.reader(io.StringIO(text))
    found = {row[0]: row[1:] for row in rows}
    assert heads == ["name", "value", "note"]
    assert found["alpha"] == ["10.123456789", 'say "a", b']
    assert found["beta"] == ["2.0", "'=HYPERLINK(1)"]  # a spreadsheet shows it and runs nothing
    assert found["delta"] == ["", ""]
    shown.locator("#t").get_by_text("Copy CSV").click()
    shown.get_by_text("Copied").wait_for()


def test_keyboard_alone_is_enough(open_page):
    shown = open_page(PLAIN)
    shown.keyboard.press("Tab")
    focused = "document.activeElement"
    assert shown.evaluate(f"{focused}.textContent") == "Skip to the content"
    assert shown.locator(".skip").bounding_box()["y"] >= 0
    shown.keyboard.press("Enter")
    assert shown.evaluate(f"{focused}.id") == "content"
    shown.locator("#t th", has_text="value").get_by_role("button").focus()
    shown.keyboard.press("Shift+Tab")
    shown.keyboard.press("Tab")
    assert shown.evaluate(f"getComputedStyle({focused}).outlineStyle") == "solid"
    assert shown.locator("#tip").inner_text() == "What it is."
    shown.keyboard.press("Escape")
    assert not shown.locator("#tip").is_visible()
    clickable = shown.evaluate(
        "[...document.querySelectorAll('*')].filter(e => getComputedStyle(e).cursor === 'pointer' "
        "&& !e.closest('button, a, summary, select')).map(e => e.tagName)"
    )
    assert clickable == []


def test_a_measure_leads_to_its_open_card(open_page):
    shown = open_page(PLAIN)
    card = shown.locator("details", has_text="relative.kappa")
    assert card.get_attribute("open") is None
    shown.locator("main p a", has_text="relative.kappa").click()
    shown.locator("details[open] dt", has_text="When it misleads").wait_for()


def test_dark_and_light(open_page):
    shown = open_page(page.render(page_with(FIGURE)), dark=True)
    shown.locator("#f .main-svg").first.wait_for()

    def colours():
        svg = shown.locator("#f .main-svg").first.evaluate("e => e.style.background")
        return shown.evaluate("getComputedStyle(document.body).backgroundColor"), svg

    dark = "rgb(20, 23, 27)"
    assert colours() == (dark, dark)
    shown.get_by_role("button", name="Light colours").click()
    assert colours() == ("rgb(255, 255, 255)",) * 2
    for _ in range(20):  # Chromium hands storage from one process to the next in its own time
        shown.reload()
        if colours()[0] != dark:
            break
    assert colours()[0] == "rgb(255, 255, 255)"  # remembered, against the system's wish
    assert shown.get_by_role("button", name="Dark colours").is_visible()


def test_figures_wait_until_they_are_near_and_come_to_paper(open_page):
    filler = Text(["word " * 40] * 60)
    shown = open_page(page.render(page_with(filler, FIGURE)), dark=True)
    assert shown.locator("#f .main-svg").count() == 0
    shown.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert shown.locator("#f .main-svg").first.evaluate("e => e.style.background") != ""
    assert shown.locator("details[open]").count() == 0  # what is closed is closed on paper, too
    shown.evaluate("dispatchEvent(new Event('afterprint'))")
    shown.emulate_media(media="print")
    assert shown.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not shown.get_by_text("Download PNG").is_visible()
    assert not shown.locator("#theme").is_visible()
    assert shown.pdf().startswith(b"%PDF")


def test_a_folded_section_opens_where_its_name_leads(open_page):
    folded = dataclasses.replace(page_with(FIGURE).sections[0], folded=True)
    shown = open_page(page.render(dataclasses.replace(page_with(), sections=[folded])))
    assert shown.locator("#one h2").is_visible()
    assert not shown.locator("#f").is_visible()
    shown.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert not shown.locator("#f").is_visible()
    shown.locator("nav a").click()
    shown.locator("#f .main-svg").first.wait_for()


def test_a_figure_can_be_saved(open_page):
    shown = open_page(page.render(page_with(FIGURE)))
    for button, start in (("Download PNG", b"\x89PNG"), ("Download SVG", b"<svg")):
        with shown.expect_download() as waiting:
            shown.get_by_text(button).click()
        data = waiting.value.path().read_bytes()
        assert data.startswith(start)
        assert waiting.value.suggested_filename.startswith("f.")
    assert b"curvature.trace" in data


def test_numbers_have_four_digits():
    assert [markup.number(v) for v in (10.123456789, 0.123456)] == ["10.12", "0.1235"]
