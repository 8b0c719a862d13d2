"""The pages speak as the field does: a short list of words to avoid, no frozen sentences."""

import pathlib
import re

import pytest

from house.words import HEADING, avoided, prose

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_page_has_a_word_to_avoid(page):
    text = page.read_text("utf-8")
    assert avoided(prose(text)) == []
    assert HEADING.findall(text) == []  # a heading names what it is about
    if re.search(r"\d columns", text):  # of a printed note
        assert "backward pass" in text, "a reader cannot guess what 9 columns are"


def test_the_list_knows_what_it_is_for():
    text = "The outputs bend; a move\nmends it. Its 9 forwards were held against `a move`."
    found = [each.partition(":")[0] for each in avoided(prose(text))]
    assert found == ["bend", "a move", "mends", "forwards", "held against"]
    assert avoided("Forward passes; the value moves; 5,000 samples; 1002; bendix") == []
    assert HEADING.findall("## Keep it\n## Keep the results\n") == ["## Keep it"]
