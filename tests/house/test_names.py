"""Names from elsewhere lead to ours: in errors, and on the page of names."""

import inspect
import pathlib
import re

import pytest
import typer
from typer.testing import CliRunner

import spiritlevel as sl
from spiritlevel.cli.app import app
from spiritlevel.measures.other_names import OTHER_NAMES, known_here_as
from spiritlevel.training.penalties import registry as penalties

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "glossary.md").read_text("utf-8")
OURS = re.compile(r"`([^`]*)`")
MEASURES = {card.name for card in sl.cards()}
FAMILIES = {name.partition(".")[0] for name in MEASURES}


def table(heading):
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:2] == "| "]
    return [[cell.strip(" |") for cell in row] for row in rows[2:]]


def keys(cell):
    """The names of a cell as the code looks them up; what is in brackets explains."""
    plain = re.sub(r"\(.*?\)", "", cell).replace("–", " ").replace("-", " ")
    return ["_".join(part.lower().split()) for part in plain.split(",")]


def exists(name):
    """A measure, something of the package with its arguments, or a command with its options."""
    if name.startswith("spiritlevel "):
        _, command, *words = name.split()
        options = {o for p in typer.main.get_command(app).commands[command].params for o in p.opts}
        return all(word in options for word in words if word.startswith("--"))
    if name.partition(".")[0] in FAMILIES:
        return name in MEASURES
    if found := re.match(r"sl\.(\w+)", name):
        given = getattr(sl, found[1])
        known = inspect.signature(given).parameters
        return all(argument in known for argument in re.findall(r"(\w+)=", name))
    return None


def test_the_page_and_the_code_have_the_same_names():
    on_page = {}
    for names, ours, *_ in table("Methods and quantities"):
        for key in keys(names):
            on_page[key] = tuple(OURS.findall(ours))
    missing = {k: v for k, v in OTHER_NAMES.items() if on_page.get(k) != v}
    assert set(missing) == {"get_esd_plot", "pyhessian"}  # they have a table of their own
    assert set(on_page) <= set(OTHER_NAMES)


def test_everything_that_the_page_names_exists():
    rows = table("Methods and quantities")
    spans = {span for row in rows for span in OURS.findall(" ".join(row[1:]))}
    spans |= {span for row in table("From PyHessian") for span in OURS.findall(row[1])}
    checked = {span: exists(span) for span in spans}
    assert [span for span, found in checked.items() if found is False] == []
    assert sum(found is True for found in checked.values()) >= 30
    # arguments and attributes alone; they are looked at by eye
    others = {span for span, found in checked.items() if found is None}
    assert others <= {
        'by="joint"',
        'by="trace"',
        'kind="fisher"',
        'method="hutchinson"',
        "measures=",
        ".barrier",
        "operator @ v",
        "operator.solve(v, damping)",
        "solve",
        "to=other",
        "to_scipy()",
    }


def test_a_name_that_does_not_exist_is_noticed():
    assert exists("curvature.fisher") is False
    assert exists("sl.measure(model, data, colour=1)") is False
    with pytest.raises(AttributeError):
        exists("sl.hessian")


@pytest.mark.parametrize("name", sorted(OTHER_NAMES))
def test_every_name_leads_somewhere(name):
    for target in OTHER_NAMES[name]:
        assert exists(target)
    with pytest.raises(sl.SpiritlevelError) as error:
        sl.cards(name)
    assert all(target in str(error.value) for target in OTHER_NAMES[name])


@pytest.mark.parametrize("written", ["Hessian trace", "HESSIAN-TRACE", "hessian_trace"])
def test_capitals_blanks_and_dashes_do_not_matter(written):
    assert known_here_as(written) == ("curvature.trace",)


@pytest.mark.parametrize(
    "words",
    [
        ("list", "fisher"),
        ("show", "Fisher trace"),
        ("measure", "--model", "mlp", "--data", "digits", "--measures", "fisher_trace"),
    ],
)
def test_the_command_line_answers_with_our_name(words):
    result = CliRunner().invoke(app, list(words), prog_name="spiritlevel")
    assert result.exit_code == 1
    assert "Did you mean 'curvature.ggn_trace'" in " ".join(result.stderr.split())


def test_a_penalty_is_found_by_the_name_of_its_paper():
    with pytest.raises(sl.SpiritlevelError, match=r"called 'FAM'\. Did you mean 'kappa'\?"):
        penalties._factory("FAM")
