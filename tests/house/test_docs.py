"""The pages in docs/: Python blocks and cheap commands run, and the site builds without gaps."""

import contextlib
import importlib.util
import io
import pathlib
import re
import shlex
import sys
import urllib.parse

import pytest
import typer
from typer.testing import CliRunner

from spiritlevel.cli.app import app

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
COMMANDS = typer.main.get_command(app)
BLOCK = re.compile(r"^```(python|console|text)\n(.*?)^```", flags=re.M | re.S)
NEEDED = {
    "from transformers": "transformers",
    "from peft": "peft",
    "from lightning": "lightning",
    "--html": "plotly",
    "import auto_augment": "kornia",
}


def name_of(page):
    return str(page.relative_to(DOCS))


def blocks(page, *languages):
    found = BLOCK.findall(page.read_text("utf-8"))
    return [(language, body) for language, body in found if language in languages]


def is_experiment(page):
    """Written by a program, with the command that repeats hours of training."""
    return page.parent.name == "experiments"


def runnable(page):
    return blocks(page, "python", *["console"] * (not is_experiment(page)))


def without_numbers(text):
    """Lines with numbers masked and blanks squeezed: values may differ in their last digits."""
    lines = (re.sub(r"\d[\d.e+-]*", "#", line) for line in text.strip().splitlines())
    return [" ".join(re.sub(r"─+", "─", line).split()) for line in lines]


def run_python(body, names, page):
    """A block that begins with the name of a file is that file, too."""
    if found := re.match(r"# (\w+\.py)\n", body):
        pathlib.Path(found[1]).write_text(body, encoding="utf-8")
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(body, name_of(page), "exec"), names)


def run_console(body):
    """One command after the other; what stands below a command is what it prints."""
    for part in re.split(r"^\$ ", body, flags=re.M)[1:]:
        command, _, shown = part.partition("\n")
        program, *args = shlex.split(command)
        assert program == "spiritlevel"
        result = CliRunner().invoke(app, args, prog_name="spiritlevel")
        assert result.exit_code == 0, result.output
        if shown.strip():
            assert without_numbers(result.stdout) == without_numbers(shown)


def test_there_is_something_to_run():
    assert {"index.md", "estimates.md", "guides/plain-loop.md"} <= {
        name_of(page) for page in PAGES if runnable(page)
    }
    assert sum(len(blocks(page, "console")) for page in PAGES) >= 5


@pytest.mark.sampled(2)
@pytest.mark.parametrize("page", [page for page in PAGES if runnable(page)], ids=name_of)
def test_blocks_run_in_order(page, tmp_path, monkeypatch):
    for word, package in NEEDED.items():
        if word in page.read_text("utf-8"):
            pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    names = {}
    try:
        for language, body in runnable(page):
            run_python(body, names, page) if language == "python" else run_console(body)
    finally:
        for file in tmp_path.glob("*.py"):
            sys.modules.pop(file.stem, None)


def shown_commands():
    """Lines that call the program but take too long, or too much, to be run."""
    for page in PAGES:
        for _, body in blocks(page, "text", *["console"] * is_experiment(page)):
            lines = (line.removeprefix("$ ") for line in body.splitlines())
            yield from (line for line in lines if line.startswith("spiritlevel "))


@pytest.mark.parametrize("line", sorted(set(shown_commands())))
def test_commands_that_are_not_run_are_understood(line):
    command, words = COMMANDS, shlex.split(line)[1:]
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        command = command.commands[words.pop(0)]
    if words == ["--install-completion"]:  # it would write to the user's shell
        return
    with command.make_context("page", words):
        pass  # parsed and converted, not run


def test_other_languages_do_not_hide_code():
    """A block of another kind would be neither run nor read."""
    kinds = {
        kind
        for page in PAGES
        if not is_experiment(page)
        for kind in re.findall(r"^```(\S*)\n(?:.|\n)*?^```", page.read_text("utf-8"), flags=re.M)
    }
    assert kinds <= {"python", "console", "text"}


# -- the site --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site; a page that leads nowhere, or to which nothing leads, is an error."""
    for package in ("mkdocs", "mkdocstrings"):
        pytest.importorskip(package, reason=f"the site is built with it: pip install {package}")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    config = load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(folder))
    build(config)
    return folder


def test_the_site_has_every_page(site):
    built = {str(page.relative_to(site).with_suffix(".md")) for page in site.rglob("*.html")}
    assert {name_of(page) for page in PAGES} <= built


def test_experiments_are_one_entry_of_the_menu(site):
    page = (site / "index.html").read_text("utf-8")
    assert 'href="experiments.html"' in page
    assert "experiments/002-fig-4.html" not in page
    assert "experiments/002-fig-4.html" in (site / "experiments.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("FlatnessMonitor", "api.html#spiritlevel.FlatnessMonitor"),
        ("preflight", "api.html#spiritlevel.preflight"),
        ("load_checkpoint", "api.html#spiritlevel.study.checkpoints.load_checkpoint"),
        ("equal confidence", "api.html#spiritlevel.compare"),
    ],
)
def test_search_finds_it_from_a_folder(site, browser, words, page):
    """As a file, without a server: no script error, and the right page among the first."""
    errors = []
    opened = browser.new_page()
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    opened.goto((site / "guides" / "lightning.html").as_uri())
    opened.evaluate("document.getElementById('mkdocs_search_modal').style.display = 'block'")
    opened.locator("#mkdocs-search-query").fill(words)
    opened.locator("#mkdocs-search-results a").first.wait_for()
    links = opened.locator("#mkdocs-search-results a").evaluate_all("all => all.map(a => a.href)")
    assert any(link.endswith(page) or page in link for link in links[:8]), links[:8]
    assert pathlib.Path(urllib.parse.urlparse(links[0]).path).is_file()
    assert errors == []
    opened.close()


def test_nothing_is_fetched_from_elsewhere(site):
    fetched = re.compile(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=[\"']?(?:https?:)?//[^>]+>")
    for page in site.rglob("*.html"):
        assert fetched.findall(page.read_text("utf-8")) == [], page.name
    for style in site.rglob("*.css"):
        text = style.read_text("utf-8")
        assert not re.search(r"url\([\"']?(?:https?:)?//|@import [\"']?http", text), style.name


def test_formulas_are_typeset(site):
    assert "$$" in (DOCS / "measures.md").read_text("utf-8")
    page = (site / "measures.html").read_text("utf-8")
    assert "$$" not in page
    assert page.count('<p class="formula">') == page.count("When it misleads:") > 50


def test_a_formula_is_text():
    """What is not known stays as it was written, and is never markup."""
    spec = importlib.util.spec_from_file_location("docs_hooks", DOCS / "hooks.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    found = hooks.on_page_markdown(r"before $$ \lambda_1 < <b> $$ after")
    assert found == 'before <p class="formula">λ<sub>1</sub> &lt; &lt;b&gt;</p> after'
