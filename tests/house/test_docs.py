"""The pages in docs/: Python blocks and cheap commands run, and the site builds without gaps."""

import importlib.util
import inspect
import os
import pathlib
import re
import shlex
import sys
import types
import urllib.parse

import pytest
import torch
import typer
from torch.nn import functional as F

import spiritlevel as sl
from command_line import ABSENT
from house import shown
from spiritlevel.cli.app import app
from spiritlevel.inputs import digits, mlp
from spiritlevel.verbs import measuring as api

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    page for folder in ("docs", "reproduction") for page in (ROOT / folder).rglob("*.md")
)
NOT_SHOWN = {"docs/api-examples.md"}  # its parts stand on other pages
COMMANDS = typer.main.get_command(app)
NEEDED = {
    "from transformers": "transformers",
    "from peft": "peft",
    "from lightning": "lightning",
    "--html": "plotly",
    "import auto_augment": "kornia",
    "from spiritlevel_lab": "spiritlevel_lab",
    "$ spiritlevel study": "spiritlevel_lab",
}


def name_of(page):
    return page.relative_to(ROOT).as_posix()


def blocks(page, *languages):
    return shown.blocks(page.read_text("utf-8"), *languages)


def is_experiment(page):
    """Written by a program, with the command that repeats hours of training."""
    return page.parent.name == "experiments"


def runnable(page):
    return blocks(page, "python", *["console"] * (not is_experiment(page)))


def test_there_is_something_to_run():
    assert {"docs/index.md", "docs/mathematics.md", "docs/guides/frameworks.md"} <= {
        name_of(page) for page in PAGES if runnable(page)
    }
    assert sum(len(blocks(page, "console")) for page in PAGES) >= 5


@pytest.mark.sampled(4)
@pytest.mark.parametrize("page", [page for page in PAGES if runnable(page)], ids=name_of)
def test_blocks_run_in_order(page, tmp_path, monkeypatch):
    for word, package in NEEDED.items():
        if word in page.read_text("utf-8"):
            pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    names = {}
    try:
        for block in runnable(page):
            if block.language == "python":
                shown.run_python(block, names, name_of(page))
            else:
                shown.run_console(block)
    finally:
        for file in tmp_path.glob("*.py"):
            sys.modules.pop(file.stem, None)


def shown_commands():
    """Lines that call the program but take too long, or too much, to be run."""
    for page in PAGES:
        for block in blocks(page, "text", *["console"] * is_experiment(page)):
            lines = (line.removeprefix("$ ") for line in block.body.splitlines())
            for line in lines:
                if line.startswith("spiritlevel ") and line.split()[1] not in ABSENT:
                    yield line


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
        for _, kind in re.findall(
            r"^( *)```(\S*)\n(?:.|\n)*?^\1```", page.read_text("utf-8"), flags=re.M
        )
    }
    assert kinds <= {"python", "console", "text", "diff"}


def test_the_diff_is_a_training_loop_that_runs():
    [block] = [block for page in PAGES for block in blocks(page, "diff")]
    lines = block.body.splitlines()
    assert all(line[:2] in ("+ ", "- ", "  ", "+", "") for line in lines)
    x, y = (t[:128] for t in digits("train"))
    model = mlp()
    batches = list(zip(x.split(32), y.split(32), strict=True))
    names = {
        "F": F,
        "epochs": 3,
        "model": model,
        "train_loader": batches,
        "probe_loader": batches,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
    }
    code = "\n".join(line[2:] for line in lines if not line.startswith("-"))
    printed = shown.run_python(shown.Block("python", code), names, "the diff")
    assert len(printed.splitlines()) == 3


@pytest.mark.parametrize("page", sorted((DOCS / "tutorials").glob("*.md")), ids=name_of)
def test_every_tutorial_shows_what_its_code_prints(page):
    assert [block for block in blocks(page, "python") if block.printed]


def test_default_measures_stand_where_their_symmetries_belong():
    section = (DOCS / "choosing.md").read_text("utf-8").partition("## By invariance")[2]
    rows = re.findall(r"^\| (.+?) \| (`.+`) \|$", section.partition("\n## ")[0], flags=re.M)
    symmetries = {
        "rescaling layers and single neurons": {"layer_rescale", "neuron_rescale"},
        "rescaling layers": {"layer_rescale"},
        "neither": set(),
    }
    on_page = {name: symmetries[row] for row, cell in rows for name in re.findall("`(.+?)`", cell)}
    left_out = {"scaled.trace"}  # named below the table
    assert on_page == {
        card.name: set(card.invariant) & {"layer_rescale", "neuron_rescale"}
        for card in api.cards()
        if card.default and card.name not in left_out
    }


def test_every_family_is_named():
    text = (DOCS / "measures.md").read_text("utf-8")
    named = re.findall(r"^\| `(\w+)\.\*` \|", text, flags=re.MULTILINE)
    assert {card.family for card in api.cards()} == set(named)


@pytest.mark.parametrize(
    "page",
    sorted(
        page
        for each in ("choosing", "reports", "guides/*", "uses/*")
        for page in DOCS.glob(f"{each}.md")
    ),
    ids=name_of,
)
def test_a_guide_is_short(page):
    """One task, at most 600 words beside its code; tables of results are in reproduction/."""
    prose = re.sub(r"^ *```.*?^ *```", "", page.read_text("utf-8"), flags=re.M | re.S)
    assert len(re.findall(r"\S*\w\S*", prose)) <= 600
    assert not re.search(r"^\|.*\d ± \d", prose, flags=re.M)


def test_every_file_format_is_named():
    sources = (path for room in ("src", "lab/src") for path in (ROOT / room).rglob("*.py"))
    known = set(
        re.findall(r'"(spiritlevel-[a-z-]+-\d+)"', " ".join(p.read_text("utf-8") for p in sources))
    )
    named = set(
        re.findall(r"`(spiritlevel-[a-z-]+-\d+)`", (DOCS / "versioning.md").read_text("utf-8"))
    )
    assert known == named


def test_experiments_are_cited_by_author():
    """Their ids stand in links and in code alone."""
    left_out = re.compile(r"\]\([^)]*\)|^ *```.*?^ *```|`[^`]*`", flags=re.M | re.S)
    for page in DOCS.rglob("*.md"):
        text = left_out.sub("", page.read_text("utf-8"))
        assert re.findall(r"\b00[0-4]-\w+", text) == [], page.name


# -- the site --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site; a page that leads nowhere, or to which nothing leads, is an error."""
    for package in ("mkdocs", "mkdocstrings", "material", "latex2mathml"):
        pytest.importorskip(package, reason=f"the site is built with it: pip install {package}")
    from filelock import FileLock  # torch needs it, too
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    room = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        room = room.parent  # of all workers: one builds, and the others wait for it
    folder, built = room / "site", room / "site-is-built"
    with FileLock(room / "site.lock"):
        if not built.exists():
            build(load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(folder)))
            built.touch()
    return folder


def test_the_site_has_every_page(site):
    built = {page.relative_to(site).with_suffix(".md").as_posix() for page in site.rglob("*.html")}
    pages = {name_of(page) for page in PAGES} - NOT_SHOWN
    assert {page.removeprefix("docs/") for page in pages} <= built


def test_all_keywords_of_a_verb_are_shown(site):
    page = (site / "api" / "neurons.html").read_text("utf-8")
    section = page.partition('id="spiritlevel.neurons"')[2].partition("</pre>")[0]
    shown = re.findall(r"\w+", re.sub(r"<[^>]*>", "", section))
    assert set(inspect.signature(sl.neurons).parameters) <= set(shown)
    assert "shared" not in shown


def test_a_function_has_a_page_with_an_example_and_what_goes_with_it(site):
    page = (site / "api" / "quantization.html").read_text("utf-8")
    for words in ('id="example"', 'id="see-also"', 'href="pruning.html"', 'href="../uses/'):
        assert words in page


def test_every_example_belongs_to_a_function():
    listed = re.findall(r"^- `([\w.]+)`$", (DOCS / "api.md").read_text("utf-8"), flags=re.M)
    shown = re.findall(r"^## (\S+)$", (DOCS / "api-examples.md").read_text("utf-8"), flags=re.M)
    assert set(shown) - set(listed) == {"setup"}


def test_a_command_has_a_page_with_its_options(site):
    page = (site / "commands" / "quantize.html").read_text("utf-8")
    for option in (o for p in COMMANDS.commands["quantize"].params for o in p.opts):
        assert option in page


def test_the_second_site_and_the_first_lead_to_each_other(site):
    pages = site / "reproduction"
    assert "experiments/002-fig-4.html" in (pages / "experiments.html").read_text("utf-8")
    assert 'href="../mathematics.html"' in (pages / "estimates.html").read_text("utf-8")
    assert 'href="reproduction/experiments.html"' in (site / "what-holds.html").read_text("utf-8")


FOUND = {
    "FlatnessMonitor": "api/FlatnessMonitor.html",
    "preflight": "api/preflight.html",
    "load_checkpoint": "api/inputs.load_checkpoint.html",
    "equal confidence": "trust.html",
}


def test_search_finds_it_from_a_folder(site, browser):
    """As a file, without a server: no script error, and the right page among the first.

    One visit for all words, since the page makes its index anew for every visit.
    """
    errors = []
    opened = browser.new_page()
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    opened.goto((site / "guides" / "frameworks.html").as_uri())
    opened.locator("input.md-search__input").click()
    searched = opened.locator("input.md-search__input")
    for words, page in FOUND.items():
        searched.fill("")
        searched.press_sequentially(words)
        opened.wait_for_function(AMONG_THE_FIRST, arg=page, timeout=20_000)
        first = opened.locator(".md-search-result__link").first.evaluate("link => link.href")
        assert pathlib.Path(urllib.parse.urlparse(first).path).is_file()
    assert errors == []
    opened.close()


AMONG_THE_FIRST = """page => [...document.querySelectorAll('.md-search-result__link')]
  .slice(0, 8).some(link => link.href.includes(page))"""


def test_nothing_is_fetched_from_elsewhere(site):
    fetched = re.compile(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=[\"']?(?:https?:)?//[^>]+>")
    for page in site.rglob("*.html"):
        assert fetched.findall(page.read_text("utf-8")) == [], page.name
    for style in site.rglob("*.css"):
        text = style.read_text("utf-8")
        assert not re.search(r"url\([\"']?(?:https?:)?//|@import [\"']?http", text), style.name


def test_formulas_are_typeset(site):
    for path in ("measures/relative.html", "measures/head.html", "mathematics.html"):
        page = (site / path).read_text("utf-8")
        assert "arithmatex" not in page
        formulas = re.findall(r"<math .*?</math>", page, flags=re.S)
        assert len(formulas) >= 5
        assert [each for each in formulas if "\\" in re.sub("<[^>]*>", "", each)] == []


def test_the_symbols_of_every_formula_are_explained():
    symbols = hook("symbols").symbols
    assert [card.name for card in api.cards() if not symbols(card.formula)] == []
    rows = symbols(r"\sum_s \langle w_s, w_s \rangle H^l_{s,s}")
    assert [row.partition("$ ")[0] for row in rows] == ["$H^l", "$w_s"]


def hook(name):
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_formula_is_mathml():
    """What `\\bigl` leaves as it is becomes a sign, too."""
    pytest.importorskip("latex2mathml")
    made = hook("hooks").on_page_content(r'a <span class="arithmatex">\(\bigl\| w &lt; 1\)</span>')
    assert made.startswith("a <math")
    assert "‖" in made
    assert "&#x0003C;" in made


def test_anchors_are_selectors():
    """The theme's script ends with an error at one that is not."""
    pytest.importorskip("latex2mathml")
    assert hook("hooks").anchor("1. A first number", "-") == "_1-a-first-number"
    assert hook("hooks").anchor("What holds", "-") == "what-holds"


def test_links_that_lead_nowhere_are_found(tmp_path):
    pytest.importorskip("mkdocs")
    (tmp_path / "there.html").write_text('<h2 id="part">x</h2><a name="old">', "utf-8")
    (tmp_path / "picture.png").write_bytes(b"")
    fine = [
        "there.html",
        "there.html#part",
        "there.html#old",
        "picture.png",
        "#top",
        "data:image/png;",
    ]
    fine += ["https://example.org/a"]
    wrong = [
        "gone.html",
        "there.html#gone",
        "#gone",
        "gone.png",
        "http://example.org",
        "https:///a",
    ]
    wrong += ["https://nowhere", " there.html", "ftp://example.org"]
    links = "".join(f'<a href="{link}">' for link in fine + wrong)
    (tmp_path / "page.html").write_text(f'<p id="top">{links}', "utf-8")
    found = hook("links").broken(tmp_path)
    assert sorted(line.split(": ")[1].strip() for line in found) == sorted(w.strip() for w in wrong)


def test_the_api_has_every_public_name():
    text = (DOCS / "api.md").read_text("utf-8")
    public = {
        name
        for name, value in vars(sl).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert {name for name in public if f"- `spiritlevel.{name}`\n" not in text} == set()


def test_notebooks_are_pages_too(site):
    """With what their cells print and draw, and with links from one page to the other."""
    page = (site / "notebooks" / "your-own-network.html").read_text("utf-8")
    assert page.count("data:image/png;base64,") == 1
    assert "curvature.trace" in page
    assert 'href="language-model.html"' in page
    assert (site / "notebooks" / "your-own-network.ipynb").is_file()
    first = (site / "tutorials" / "first-number.html").read_text("utf-8")
    assert "notebooks/your-own-network.html" in first
