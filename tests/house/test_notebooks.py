"""The notebooks in docs/: they run from top to bottom, and show what is stored in them."""

import ast
import html
import importlib.util
import json
import operator
import pathlib
import re

import pytest

import fresh
import spiritlevel as sl
from house.shown import without_numbers

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def cells(path, kind):
    book = json.loads(path.read_text("utf-8"))
    return [cell for cell in book["cells"] if cell["cell_type"] == kind]


def shown(cell):
    """What stands below a cell, without numbers; of a picture only that there is one."""
    found = []
    for output in cell["outputs"]:
        for kind, content in output.get("data", {"text/plain": output.get("text")}).items():
            text = re.sub(r"<[^>]+>", " ", html.unescape("".join(content)))
            found.append((kind, without_numbers(text) if kind.startswith("text/") else None))
    return found


def test_there_are_four():
    names = ["a-population", "language-model", "monitor-and-sam", "your-own-network"]
    assert [path.stem for path in NOTEBOOKS] == names
    menu = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert all(f": notebooks/{name}.md" in menu for name in names)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_it_takes_from_the_library_is_there(path):
    """All that can be said of the cells without running them, which is left to the night."""
    tree = ast.parse("\n".join("".join(cell["source"]) for cell in cells(path, "code")))
    found = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("spiritlevel"):
            pytest.importorskip(node.module.partition(".")[0])  # the laboratory
            module = importlib.import_module(node.module)
            assert [name.name for name in node.names if not hasattr(module, name.name)] == []
            found += 1
    for names in re.findall(r"\bsl\.([a-zA-Z_]\w*(?:\.[a-zA-Z_]\w*)*)\(", ast.unparse(tree)):
        assert callable(operator.attrgetter(names)(sl)), names
        found += 1
    assert found >= 2


def test_cells_run_in_order_and_what_they_show_is_stored():
    spec = importlib.util.spec_from_file_location("execute", FOLDER / "execute.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sources = ["x = 2\nprint('two')", "x += 1\nx", "x = 0"]
    book = {"cells": [{"cell_type": "code", "source": [source]} for source in sources]}
    first, second, third = module.executed(book)["cells"]
    assert [cell["execution_count"] for cell in (first, second, third)] == [1, 2, 3]
    assert shown(first) == [("text/plain", ["two"])]
    assert [output["data"] for output in second["outputs"]] == [{"text/plain": ["3"]}]
    assert third["outputs"] == []


@pytest.mark.nightly  # each takes ten seconds
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_and_shows_what_is_stored(path, tmp_path):
    for package in ("matplotlib", "plotly", "transformers", "scipy", "pandas"):
        pytest.importorskip(package)
    done = fresh.run(FOLDER / "execute.py", path, "--out", tmp_path / path.name)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # a warning would stand in the notebook of everybody who runs it
    now, stored = cells(tmp_path / path.name, "code"), cells(path, "code")
    assert [shown(cell) for cell in now] == [shown(cell) for cell in stored]
    assert sum(bool(cell["outputs"]) for cell in stored) >= 4


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_says_what_it_needs_and_installs_nothing(path):
    first, *_ = cells(path, "markdown")
    assert "It needs " in "".join(first["source"])
    assert "pip" not in "".join("".join(cell["source"]) for cell in cells(path, "code"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_a_notebook(path):
    """What the format asks for, so that Jupyter and code hosts open it."""
    book = json.loads(path.read_text("utf-8"))
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in book["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in book["cells"]:
        required = {"cell_type", "id", "metadata", "source"}
        code = {"execution_count", "outputs"} if cell["cell_type"] == "code" else set()
        assert set(cell) == required | code
    links = re.findall(r"\]\(([^)]+\.ipynb)\)", path.read_text("utf-8"))
    inside = [link for link in links if not link.startswith("https://")]
    assert [link for link in inside if not (FOLDER / link).exists()] == []
