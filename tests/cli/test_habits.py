"""What a user does without thinking: writes twice, lists with commas, misspells, sets in vain."""

import json

import pytest

import spiritlevel as sl
from command_line import run

SMALL = ("--model", "mlp", "--model-arg", "hidden=6", "--samples", "30")


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_a_file_is_not_replaced_silently(option, tmp_path):
    path = tmp_path / "kept"
    path.write_text("an hour of work")
    command = ("measure", *SMALL, "--measures", "head.kappa", option, path)
    result = run(*command, code=1)
    assert result.stdout == ""  # before anything was measured
    assert "exists already, and would be replaced. Give another path, or --overwrite." in (
        result.stderr
    )
    assert path.read_text() == "an hour of work"
    run(*command, "--overwrite")
    assert path.read_text() != "an hour of work"


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (("spectrum",), "--plot"),
        (("landscape",), "--plot"),
        (("prune",), "--plot"),
        (("prune", "--share", "0.3"), "--save"),
        (("quantize", "--mean-bits", "4"), "--save"),
    ],
)
def test_neither_are_figures_and_weights(command, option, tmp_path):
    path = tmp_path / "kept.png"
    path.write_text("the trained weights")
    result = run(*command, *SMALL, option, path, code=1)
    assert "exists already, and would be replaced." in result.stderr
    assert path.read_text() == "the trained weights"


def test_leave_to_overwrite_is_not_kept_for_the_next_command(tmp_path):
    path = tmp_path / "list.json"
    run("list", "head.*", "--json", path, "--overwrite")
    run("list", "head.*", "--json", path, code=1)


def test_a_report_is_not_replaced_silently(tmp_path):
    source, out = tmp_path / "measured.json", tmp_path / "report.html"
    run("measure", *SMALL, "--measures", "head.kappa", "--json", source)
    run("report", source, "--out", out)
    before = out.read_bytes()
    run("report", source, "--out", out, "--title", "Another", code=1)
    assert out.read_bytes() == before
    run("report", source, "--out", out, "--title", "Another", "--overwrite")
    assert b"Another" in out.read_bytes()


def test_measures_with_commas():
    together = run("measure", *SMALL, "--measures", "head.kappa, softmax.gini", "--json", "-")
    assert list(sl.Report.from_json(together.stdout)) == ["head.kappa", "softmax.gini"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("kapa", "'head.kappa' or 'relative.kappa'"),
        ("trace", "'curvature.trace' or 'head.trace' or 'scaled.trace'"),
        ("relative.kapa", "'relative.kappa'"),
    ],
)
def test_suggestions_come_from_all_families(name, meant):
    assert f"Did you mean {meant}" in run("show", name, code=1).stderr


@pytest.mark.parametrize("command", ["measure", "audit"])
def test_an_option_that_nothing_reads_is_refused(command):
    given = ("--measures", "head.kappa", "--option", "rho=0.3")
    line = run(command, *SMALL, *given, code=1).stderr
    assert "The --option rho has no effect here" in line
    assert "sharpness.worst" in line  # which does read it


def test_an_audit_reads_the_options_of_what_it_adds():
    few = ("--option", "restarts=0", "--option", "ascent_steps=2", "--max-passes", "4")
    result = run("audit", *SMALL, "--option", "rho=0.01", *few, "--json", "-")
    original = json.loads(result.stdout)["original"]
    assert original["measures"]["sharpness.worst"]["settings"]["rho"] == 0.01
