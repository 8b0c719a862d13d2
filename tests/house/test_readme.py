"""What the documents show is run, and is what they say."""

import contextlib
import io
import pathlib
import re
import shlex
import textwrap

import pytest
import torch
from torch.nn import functional as F
from typer.testing import CliRunner

import fresh
import spiritlevel as sl
from spiritlevel import api
from spiritlevel.cli import cards
from spiritlevel.cli.app import app
from spiritlevel.study.data import digits
from spiritlevel.study.models import mlp

ROOT = pathlib.Path(__file__).parents[2]
HERE = "https://github.com/spiritlevel/spiritlevel/blob/main/"
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    pattern = rf"^( *)```{language}\n(.*?)^\1```"
    return [
        textwrap.dedent(body)
        for _, body in re.findall(pattern, text, flags=re.MULTILINE | re.DOTALL)
    ]


def test_there_is_something_to_run():
    assert len(blocks(README, "python")) >= 3
    assert len(blocks(README, "diff")) == 1
    assert len(blocks(README, "console")) >= 2


def test_python_blocks_run_in_order():
    names: dict = {}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for block in blocks(README, "python"):
            exec(compile(block, "README.md", "exec"), names)
    assert "relative.kappa" in printed.getvalue()
    assert "of the GGN, not the Hessian" in printed.getvalue()
    # what the first block's comments claim
    assert names["sl"].measure(mlp().eval(), digits("test"))["relative.kappa"].exact


def test_the_first_block_is_short():
    assert len([line for line in blocks(README, "python")[0].splitlines() if line]) <= 16


def test_the_diff_is_a_training_loop_that_runs():
    [block] = blocks(README, "diff")
    lines = block.splitlines()
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
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = "\n".join(line[2:] for line in lines if not line.startswith("-"))
        exec(compile(code, "README.md", "exec"), names)
    assert len(printed.getvalue().splitlines()) == 3


def without_numbers(text: str) -> list[str]:
    """Lines with numbers masked and blanks squeezed: values may differ in their last digits."""
    lines = (re.sub(r"\d[\d.e+-]*", "#", line) for line in text.strip().splitlines())
    return [" ".join(re.sub(r"─+", "─", line).split()) for line in lines]


@pytest.mark.parametrize("block", blocks(README, "console"))
def test_commands_print_what_is_shown(block):
    command, _, shown = block.partition("\n")
    program, *args = shlex.split(command.removeprefix("$ "))
    assert program == "spiritlevel"
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 0, result.output
    assert without_numbers(result.output) == without_numbers(shown)


def test_the_table_is_made_from_the_cards():
    found = re.search(r"<!-- generated: .* -->\n(.*?)<!-- end -->", README, flags=re.DOTALL)
    assert found is not None
    assert found[1] == cards.markdown_table(card for card in api.cards() if card.default)


def test_every_family_is_named():
    assert {card.family for card in api.cards()} == set(
        re.findall(r"^\| `(\w+)\.\*` \|", README, flags=re.MULTILINE)
    )


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_within_the_repository_lead_somewhere(name):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / name).read_text(encoding="utf-8"))
    own = [link.removeprefix(HERE) for link in links]
    local = [link for link in own if not link.startswith("http")]
    assert [link for link in local if not (ROOT / link).exists()] == []


def test_links_of_the_readme_work_on_a_package_index():
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    assert any(link.startswith(HERE) for link in links)


def test_the_package_names_one_address():
    """Whoever moves the repository changes it in these places, and in the README's links."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    address = HERE.removesuffix("/blob/main/")
    assert f'Source = "{address}"' in project
    assert f"repository-code: {address}" in citation
    assert f"version: {sl.__version__}" in citation


@pytest.mark.sampled(3)
@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_run(path):
    assert "assert " in path.read_text(encoding="utf-8")
    done = fresh.run(path)
    assert done.returncode == 0, done.stderr
    assert done.stdout
