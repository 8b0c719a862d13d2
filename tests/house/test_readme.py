"""What the documents show is run, and is what they say."""

import pathlib
import re
import shlex

import pytest
import typer

import fresh
import spiritlevel as sl
from command_line import ABSENT
from house.shown import blocks, run_python
from spiritlevel.cli.app import app

ROOT = pathlib.Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_there_is_something_to_run():
    first, *_ = blocks(README, "python")
    assert len([line for line in first.body.splitlines() if line]) <= 16
    assert first.printed is not None
    assert len(README.splitlines()) <= 200


def test_python_blocks_run_in_order_and_print_what_is_shown(tmp_path, monkeypatch):
    pytest.importorskip("plotly")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in blocks(README, "python"):
        run_python(block, names, "README.md")
    # what the text below says of the numbers
    assert all(measurement.exact for measurement in names["report"].values())
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize("block", blocks(README, "text"))
def test_commands_are_understood(block):
    commands = typer.main.get_command(app)
    targets = (ROOT / "Makefile").read_text(encoding="utf-8")
    for line in block.body.splitlines():
        program, *words = shlex.split(line, comments=True) or [""]
        if program == "make":
            assert f"\n{words[0]}:" in targets
        if program == "spiritlevel" and words[0] not in ABSENT:
            with commands.commands[words[0]].make_context("README.md", words[1:]):
                pass  # parsed and converted, not run


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_within_the_repository_lead_somewhere(name):
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / name).read_text(encoding="utf-8"))
    local = [link for link in links if not link.startswith("http")]
    assert [link for link in local if not leads_somewhere(link)] == []


def leads_somewhere(link):
    """Whether the file is there, and in it a heading that makes the anchor."""
    path, _, anchor = link.partition("#")
    if not (ROOT / path).exists():
        return False
    if not anchor:
        return True
    headings = re.findall(r"^#+ (.+)", (ROOT / path).read_text(encoding="utf-8"), flags=re.M)
    made = (re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings)
    return anchor in made


@pytest.mark.parametrize("project", ["pyproject.toml", "lab/pyproject.toml"])
def test_both_distributions_have_the_version_that_the_package_says(project):
    text = (ROOT / project).read_text(encoding="utf-8")
    assert re.findall(r'^version = "(.+)"', text, re.M) == [sl.__version__]


def test_the_citation_names_this_version():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {sl.__version__}" in citation


@pytest.mark.sampled(3)
@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_run(path):
    assert "assert " in path.read_text(encoding="utf-8")
    done = fresh.run(path)
    assert done.returncode == 0, done.stderr
    assert done.stdout
