"""Names from outside are shown as they are: no markup, no control of the terminal, no formulas."""

import io
import re

import pytest
from rich.table import Table
from typer.testing import CliRunner

from spiritlevel.cli import console, pace
from spiritlevel.cli.app import app
from spiritlevel.ground.plain_text import cell, visible
from spiritlevel.pages.report.markup import escape
from spiritlevel.records.measurements import Cost, Measurement, Report

MARKUP = ["sgd [/lr]", "[bold]x", "[/]", "[link=file:///etc/passwd]x", "a[", "\\[x]", ":smile:"]
OBEYED = [
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "\x9b31m",
    "a\rb",
    "a\bb",
    "\u202egpj",
    "a\x00b",
]


def command(*arguments: str) -> str:
    """What the command printed, after it ended well."""
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def harmless(text: str) -> bool:
    return not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", text)


@pytest.mark.parametrize("text", MARKUP + OBEYED, ids=ascii)
def test_every_way_to_print(capsys, text):
    table = Table(title=None)
    table.add_column(text)
    table.add_row(text)
    for page in (console.out(), console.err()):
        page.print(text, soft_wrap=True)
        console.show(page, table)
        console.tell(page, text, bold=text, mark="• ")
        console.note(page, text)
    console.say_error(text)
    with console.progress(text) as show:
        show(1, 2, text)
    shown = "".join(capsys.readouterr())
    assert harmless(shown)
    expected = visible(text) if "\r" not in text else "a"
    assert shown.count(expected) >= 10


@pytest.mark.parametrize("text", ["[/lr]", *OBEYED], ids=ascii)
def test_a_progress_bar_on_a_terminal(monkeypatch, text):
    screen = io.StringIO()
    terminal = console.PlainConsole(file=screen, force_terminal=True, width=80)
    monkeypatch.setattr(console, "err", lambda: terminal)
    with console.progress(text) as show:
        show(1, 2, text)
    assert visible(text) in screen.getvalue()
    assert text == visible(text) or text not in screen.getvalue()


@pytest.mark.parametrize("text", OBEYED, ids=ascii)
def test_errors_and_printed_reports_hold_no_control_characters(text, tmp_path):
    one = Measurement(text, 1.0, True, text=text)
    report = Report({text: one}, layers={}, settings={"num_samples": 2}, cost=Cost(2))
    assert harmless(str(report))
    path = tmp_path / "report.json"
    path.write_text(report.to_json())
    assert harmless(command("report", path, "--out", "-").replace("\t", ""))
    result = CliRunner().invoke(app, ["show", text, "--debug"])
    assert result.exit_code == 1
    assert harmless(result.output)


def test_halves_of_characters_do_not_stop_a_page():
    assert escape("a\ud800b").encode() == b"a\\ud800b"
    assert visible("\ud800") == "\\ud800"


# -- tables for spreadsheets ---------------------------------------------------------------------

FORMULAS = ["=1+1", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", " =1+1", "=cmd|' /C calc'!A0"]


@pytest.mark.parametrize("text", FORMULAS, ids=ascii)
def test_formulas_become_text(text):
    assert cell(text) == f"'{text}"


@pytest.mark.parametrize(
    "value", [-1.5, "-1.5", "+3", "1e-5", "-inf", "nan", None, True, "sgd", ""]
)
def test_numbers_and_words_stay(value):
    assert cell(value) == value


def test_the_pace_is_said_once_and_only_if_it_matters(capsys):
    now = iter([0.0, 30.0])
    watch = pace.Pace(clock=lambda: next(now))
    for done in range(1, 5):
        watch.step(done, 4)
    assert capsys.readouterr().err == "1 of 4 done; about 90 s left\n".replace("90 s", "2 min")
    now = iter([0.0, 1.0])
    watch = pace.Pace(clock=lambda: next(now))
    watch.step(1, 4)
    assert capsys.readouterr().err == ""


def test_an_audit_plans_when_it_knows_its_moves():
    planned, shown = [], []
    report = pace.audited(lambda *step: shown.append(step), planned.append)
    for step in [
        (0, 1, "looking"),
        (1, 6, "planned"),
        (1, 6, "measuring"),
        (2, 6, "a"),
        (6, 6, "done"),
    ]:
        report(*step)
    assert planned == ["planned"]
    assert [step[0] for step in shown] == [0, 1, 1, 2, 6]
