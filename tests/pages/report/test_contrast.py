"""WCAG AA: every text in both themes, from the style sheet and as Chromium paints it."""

import itertools
import re

import pytest

from spiritlevel.pages import report
from spiritlevel.pages.report import scripts

BACKGROUNDS = ("background", "panel", "stripe", "button", "button-hover", "code")
PAIRS = [(ink, below) for ink in ("text", "muted", "link") for below in BACKGROUNDS]
PAIRS += [("background", "text")]  # pressed buttons and the help


def luminance(colour):
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def from_hex(text):
    return [int(text[i : i + 2], 16) / 255 for i in (1, 3, 5)]


def from_rgb(text):
    return [float(v) / 255 for v in re.findall(r"[\d.]+", text)[:3]]


def themes():
    """Custom properties of the light theme, and of the dark one on top of them."""
    blocks = re.findall(r":root(\[data-theme=\"dark\"\])? \{([^}]*)\}", scripts.asset("page.css"))
    found = {}
    for dark, block in blocks:
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))
        found["dark" if dark else "light"] = found.get("light", {}) | colours
    return found


def test_the_measure_of_contrast_is_the_standard_one():
    assert contrast([0, 0, 0], [1, 1, 1]) == pytest.approx(21)
    assert contrast(from_hex("#767676"), [1, 1, 1]) == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize("name", ["light", "dark"])
def test_colours_of_the_style_sheet(name):
    colours = {key: from_hex(value) for key, value in themes()[name].items()}
    low = {pair: contrast(colours[pair[0]], colours[pair[1]]) for pair in PAIRS}
    assert {pair: ratio for pair, ratio in low.items() if ratio < 4.5} == {}
    assert contrast(colours["focus"], colours["background"]) >= 3  # a line, not a text


PAINTED = """() => {
  const opaque = e => {
    for (; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if (colour !== "rgba(0, 0, 0, 0)" && colour !== "transparent") return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const found = [];
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    const box = e.getBoundingClientRect();
    if (!own || !box.width || !box.height || e.closest("script, style, noscript")) continue;
    const style = getComputedStyle(e);
    const svg = e instanceof SVGElement;
    found.push({ what: e.outerHTML.slice(0, 90), ink: svg ? style.fill : style.color,
                 below: opaque(svg ? e.closest("figure") : e),
                 cell: svg && Boolean(e.closest(".textpoint")) });
  }
  return found;
}"""

INKS = """() => {
  const theme = spiritlevel.theme();
  return [theme.diverging, theme.sequential].map(scale =>
    [scale, [...Array(41).keys()].map(i => spiritlevel.ink(scale, i / 40))]);
}"""


@pytest.mark.nightly
@pytest.mark.parametrize("dark", [False, True])
def test_colours_as_painted(open_page, an_audit, dark):
    page = open_page(report.html(an_audit()), dark=dark)
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    for plot in page.locator(".plot").all():
        plot.scroll_into_view_if_needed()
        plot.locator(".main-svg").first.wait_for()
    texts = [text for text in page.evaluate(PAINTED) if not text["cell"]]
    assert len(texts) > 150
    assert any("<text" in text["what"] for text in texts)
    low = {
        text["what"]: (text["ink"], text["below"])
        for text in texts
        if contrast(from_rgb(text["ink"]), from_rgb(text["below"])) < 4.5
    }
    assert low == {}
    for scale, inks in page.evaluate(INKS):  # and what is written on colours
        for i, ink in enumerate(inks):
            assert contrast(from_hex(ink), _between(scale, i / 40)) >= 4.5


def _between(scale, fraction):
    for (start, first), (end, second) in itertools.pairwise(scale):
        if start <= fraction <= end:
            share = (fraction - start) / (end - start)
            pairs = zip(from_hex(first), from_hex(second), strict=True)
            return [a + share * (b - a) for a, b in pairs]
    raise AssertionError(fraction)
