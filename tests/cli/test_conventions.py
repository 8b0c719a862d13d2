"""What all commands have in common: help, options, exit codes, volume, colours, completion."""

import io
import json
import os
import re
import shlex
import sys

import pytest
import typer
from typer.testing import CliRunner

from command_line import ABSENT, run
from spiritlevel.cli import console
from spiritlevel.cli.app import app
from spiritlevel.inputs.data import CATALOGUE
from spiritlevel.symmetries import SYMMETRIES
from spiritlevel.verbs import measuring as api

pytestmark = pytest.mark.sampled(3)  # the others at night

ROOT = typer.main.get_command(app)
SMALL = ("--model", "mlp", "--model-arg", "hidden=8", "--samples", "20")
MEASURE = ("measure", *SMALL, "--measures", "head.trace")


def tree(command=ROOT, path=()):
    """Every command and group below that is installed, by the words that lead to it."""
    yield " ".join(path), command
    below = getattr(command, "commands", {})
    for name in below:
        if path or name not in ABSENT:
            yield from tree(below[name], (*path, name))


EVERYTHING = dict(tree())
COMMANDS = {name: c for name, c in EVERYTHING.items() if not hasattr(c, "commands")}


def flags(command):
    return {flag: p for p in command.params for flag in (*p.opts, *p.secondary_opts)}


def examples(command):
    """The lines behind 'Examples:', with continuation lines joined, up to a pipe or redirection."""
    _, _, text = (command.epilog or "").partition("Examples:\n")
    text, _, _ = text.replace("\\\n", " ").partition("\n\n")
    return [re.split(r" [|>] ", line.strip())[0] for line in text.splitlines() if line.strip(" \b")]


# -- help ------------------------------------------------------------------------------------


def test_the_tree_is_whole():
    assert {"list", "show", "measure", "audit", "compare", "spectrum"} <= COMMANDS.keys()
    assert {"data list", "data fetch"} <= COMMANDS.keys()


@pytest.mark.parametrize("name", EVERYTHING)
def test_help_shows_examples_of_the_command_itself(name):
    shown = run(*name.split(), "--help").stdout
    assert "Examples:" in shown
    own = [line for line in examples(EVERYTHING[name]) if line.startswith(f"spiritlevel {name}")]
    assert own
    assert all(line.split()[1] in shown for line in own)
    assert not re.search(r"\d{10}", shown)  # such as the largest number that torch takes


EXAMPLES = sorted({line for command in EVERYTHING.values() for line in examples(command)})


@pytest.mark.parametrize("line", [line for line in EXAMPLES if line.split()[1] not in ABSENT])
def test_examples_are_understood(line):
    command, words = ROOT, shlex.split(line)[1:]
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        command = command.commands[words.pop(0)]
    if "--install-completion" in words:  # it would write to the user's shell
        assert "--install-completion" in flags(command)
        return
    with command.make_context("example", words, resilient_parsing=False):
        pass  # parsed and converted, not run


def test_an_example_that_is_wrong_would_be_noticed():
    with pytest.raises(Exception, match="No such option"):
        COMMANDS["measure"].make_context("example", ["--modle", "mlp"])


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_the_common_options(name):
    found = flags(COMMANDS[name])
    assert {"--quiet", "-q", "--verbose", "-v", "--debug"} <= found.keys()
    assert not getattr(found["--json"], "is_flag", False), "--json takes a path, or -"


@pytest.mark.parametrize("words", [[], ["data"]])
def test_no_command_is_answered_with_the_help(words):
    result = run(*words)
    assert result.stdout.startswith(" ".join(["Usage: spiritlevel", *words]))
    assert "Examples:\n" in result.stdout
    assert result.stderr == ""


# -- exit codes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["list"], 0),
        (["--version"], 0),
        (["list", "no.such"], 1),
        (["measure", "--model", "none"], 1),
        (["measure"], 2),
        (["list", "--nonsense"], 2),
        (["measure", "--model", "mlp", "--samples", "few"], 2),
    ],
)
def test_exit_codes_tell_what_went_wrong(args, code):
    result = run(*args, code=code)
    lines = result.stderr.splitlines()
    assert len(lines) == (code != 0)
    assert all(line.startswith("error: ") for line in lines)


def test_help_documents_the_exit_codes():
    text = run("--help").stdout
    assert re.findall(r"^ +(\d+)  ", text, flags=re.M) == ["0", "1", "2", "130"]


@pytest.mark.parametrize("args", [["--debug", "list", "no.such"], ["list", "no.such", "--debug"]])
def test_debug_works_before_and_behind_the_command(args):
    result = run(*args, code=1)
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error: No measure is called 'no.such'")


# -- how much is said ------------------------------------------------------------------------


def said(*args):
    result = run(*args)
    return result.stdout, result.stderr


@pytest.mark.parametrize("flag", ["--quiet", "-q"])
def test_quiet_leaves_the_result_alone(flag, tmp_path):
    path = tmp_path / "report.json"
    out, err = said(*MEASURE, flag, "--json", path)
    assert "head.trace" in out
    assert err == ""
    assert not re.search("model:|planned:|counted:|written:|± data is", out)
    assert said(flag, *MEASURE)[0] == out
    assert path.is_file()


def test_quiet_with_json_on_stdout_says_nothing_else():
    out, err = said("-q", *MEASURE, "--json", "-")
    assert json.loads(out)["format"] == "spiritlevel-report-1"
    assert err == ""


def test_verbose_adds_settings_costs_and_times_on_stderr():
    out, err = said(*MEASURE, "-v")
    assert out == said(*MEASURE)[0]
    assert "setting: loss = cross_entropy" in err
    assert "setting: num_samples = 20" in err
    assert re.search(r"^cost: head\.trace = 1 forward", err, flags=re.M)
    assert re.search(r"^time: measuring took \d+\.\d\d s$", err, flags=re.M)
    assert said(*MEASURE)[1] == ""


@pytest.mark.parametrize(
    "args", [("audit", *SMALL, "--measures", "head.trace"), ("spectrum", *SMALL, "--num", "1")]
)
def test_other_commands_say_their_settings_and_times_too(args):
    out, err = said(*args, "--verbose")
    assert "setting: num_samples = 20" in err
    assert re.search(r"^time: \w+ took ", err, flags=re.M)
    assert "setting:" not in out


def test_the_volume_of_one_command_does_not_reach_the_next():
    run("-q", "list", "head.trace")
    assert console.VOLUME.get() is console.Volume.NORMAL
    assert "planned:" in said(*MEASURE)[0]


@pytest.mark.parametrize("args", [["-q", "-v", "list"], ["-q", "list", "-v"], ["list", "-qv"]])
def test_quiet_and_verbose_exclude_each_other(args):
    assert "--quiet and --verbose exclude each other" in run(*args, code=2).stderr


# -- colours ---------------------------------------------------------------------------------


class Terminal(io.StringIO):
    """Text that says it is a terminal."""

    def isatty(self):
        return True


COLOUR = re.compile(r"\x1b\[[\d;]*3[1-7]m")


@pytest.mark.parametrize(
    ("stream", "no_colour", "coloured"),
    [(Terminal, None, True), (Terminal, "1", False), (io.StringIO, None, False)],
)
def test_colours_only_on_a_terminal_that_wants_them(monkeypatch, stream, no_colour, coloured):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    if no_colour:
        monkeypatch.setenv("NO_COLOR", no_colour)
    screen = stream()
    monkeypatch.setattr(sys, "stdout", screen)
    args = ["audit", *SMALL, "--measures", "curvature.trace", "-q"]
    with pytest.raises(SystemExit) as ended:
        ROOT.main(args)
    assert ended.value.code == 0
    assert "curvature.trace" in screen.getvalue()
    assert bool(COLOUR.search(screen.getvalue())) == coloured


# -- JSON ------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["list", "show"])
def test_cards_as_json(command, tmp_path):
    path = tmp_path / "cards.json"
    printed = run(command, "relative.*", "--json", path).stdout
    assert "relative.kappa_std" in printed
    text = run(command, "relative.*", "--json", "-").stdout
    assert path.read_text() == text
    found = {card["name"]: card for card in json.loads(text)["cards"]}
    assert list(found) == [card.name for card in api.cards("relative.*")]
    for card in api.cards("relative.*"):
        facts = found[card.name]
        assert facts["summary"] == card.summary
        assert facts["misleads"] == card.misleads
        assert facts["direction"] == card.direction == "smaller is flatter"
        assert set(facts["unchanged_by"]) == set(card.invariant) & set(SYMMETRIES)
        assert set(facts["unchanged_by"]) | set(facts["moved_by"]) == set(SYMMETRIES)
        assert set(facts["options"]) == set(card.options)


def test_data_sets_as_json(tmp_path):
    found = json.loads(
        run("data", "list", "--json", "-", env={"SPIRITLEVEL_DATA": str(tmp_path)}).stdout
    )
    assert found["folder"] == str(tmp_path)
    rows = {row["name"]: row for row in found["data"]}
    assert set(rows) == {"digits", *CATALOGUE}
    assert rows["digits"]["here"]
    assert not rows["mnist"]["here"]
    assert rows["mnist"]["bytes"] == sum(file.size for file in CATALOGUE["mnist"].files)


# -- completion ------------------------------------------------------------------------------


def offered(line):
    """What bash is offered at the end of the line, by the protocol of the installed command."""
    words = shlex.split(line) + [""] * line.endswith(" ")
    env = {
        "_SPIRITLEVEL_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    result = CliRunner().invoke(app, [], env=os.environ | env, prog_name="spiritlevel")
    return result.stdout.split()


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("spiritlevel mea", ["measure"]),
        ("spiritlevel show head.t", ["head.trace", "head.trace_squared"]),
        ("spiritlevel list softmax.g", ["softmax.gini"]),
        ("spiritlevel measure --measures softmax.e", ["softmax.entropy"]),
        ("spiritlevel audit --model le", ["lenet5"]),
        ("spiritlevel compare --data fash", ["fashion-mnist"]),
        ("spiritlevel data fetch fash", ["fashion-mnist"]),
        ("spiritlevel measure --jso", ["--json"]),
        ("spiritlevel show zzz", []),
    ],
)
def test_completion_offers_names(line, names):
    assert offered(line) == names


def test_completion_can_be_shown_for_a_shell(monkeypatch):
    # typer asks the processes above it, and a test may have no shell there
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: "bash")
    assert "_SPIRITLEVEL_COMPLETE=complete_bash" in run("--show-completion").stdout
