"""Every Python block of the pages in docs/ runs, one after the other."""

import contextlib
import io
import pathlib
import re

import pytest

DOCS = pathlib.Path(__file__).parents[1] / "docs"
PAGES = [page for page in sorted(DOCS.glob("*.md")) if "```python" in page.read_text("utf-8")]


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), flags=re.M | re.S)


def test_there_is_something_to_run():
    assert "estimates.md" in [page.name for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_run_in_order(page):
    if "from transformers" in page.read_text("utf-8"):
        pytest.importorskip("transformers")
    names = {}
    with contextlib.redirect_stdout(io.StringIO()):
        for block in blocks(page):
            exec(compile(block, page.name, "exec"), names)
