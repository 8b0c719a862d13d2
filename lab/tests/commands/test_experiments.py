"""From the list of studies to what came of a paper's claim, on the command line."""

import dataclasses
import json
import re
from importlib import resources

import pytest
import yaml

import command_line
import fresh
import spiritlevel as sl
from pages.planted_stores import planted
from spiritlevel.records.content import Table
from spiritlevel_lab.claims.experiment import Outcome
from spiritlevel_lab.claims.findings import Finding
from spiritlevel_lab.claims.numbers import IntervalEstimate
from spiritlevel_lab.papers import registry
from spiritlevel_lab.population import control

pytestmark = pytest.mark.sampled(3)  # the others at night

NAME = "001-table-2"
EXPERIMENT = registry.find(NAME)
MARKUP = "[bold]no markup[/]"
OUTCOME = Outcome(
    table=Table(("a",), [["b"]]),
    findings=[
        Finding("a part that holds", "held", IntervalEstimate(0.5, 0.25, 0.75, 7)),
        Finding(MARKUP, "not held", "seven of nine " * 12),
        Finding(
            "a part without interval", "undecided", IntervalEstimate(2.0, float("nan"), 1.0, 1)
        ),
    ],
    agrees="partly",
    conclusion=f"One part holds, {MARKUP} does not.",
    why="The norms differ.",
)


def said(*arguments, columns: int = 80, code: int = 0):
    return command_line.run(*arguments, code=code, env={"COLUMNS": str(columns)})


def analysed_by(monkeypatch, analyse):
    changed = dataclasses.replace(EXPERIMENT, analysis=lambda _, rows: analyse(rows))
    monkeypatch.setattr(registry, "of_study", lambda study: [changed])


def stored(folder, **more):
    """A folder of the library's study, never trained."""
    fields = control.find(NAME).to_dict() | {"grid": {"lr": [0.01]}} | more
    store = planted(folder, names=EXPERIMENT.measures, epochs=1, layers=(), **fields)
    with store, store._writing():  # each reached the training accuracy at which the study stops
        store._connection.execute(
            "UPDATE runs SET outcome = 'train_accuracy' WHERE outcome = 'epochs'"
        )
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return stored(tmp_path_factory.mktemp("experiment"))


def one_line(text: str) -> str:
    return " ".join(text.split())


def report(folder, *more, columns: int = 80) -> str:
    return said("study", "report", folder, *more, columns=columns).stdout


# -- the list --------------------------------------------------------------------------------


def test_every_study_is_listed_with_presets_and_description():
    folders = (
        resources.files("spiritlevel_lab.population.library"),
        resources.files("spiritlevel_lab.papers") / "studies",
    )
    files = [file for folder in folders for file in folder.iterdir()]
    texts = [file.read_text() for file in files if file.name.endswith(".yaml")]
    given = [next(yaml.safe_load_all(text)) for text in texts]  # claims stand behind a study
    listed = json.loads(said("study", "list", "--json", "-").stdout)
    assert listed["format"] == "spiritlevel-studies-1"
    found = {row["name"]: row for row in listed["studies"]}
    assert list(found) == sorted(study["name"] for study in given)
    for study in given:
        assert found[study["name"]]["presets"] == list(study["presets"])
        assert found[study["name"]]["description"] == study["description"]
    assert found["002-fig-4"]["paper"] == "Relative Flatness and Generalization"
    assert found["digits"]["paper"] == ""


def test_the_list_fits_the_terminal():
    text = said("study", "list").stdout
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"^ 002-fig-4 +Do flatness and a", text, re.MULTILINE)
    assert "? (quick, paper)\n" in text
    assert "\nRelative Flatness and Generalization\n" in text
    assert "spiritlevel study run NAME --preset quick" in text
    quiet = said("-q", "study", "list").stdout
    assert "NAME" not in quiet
    assert "\nRelative Flatness and Generalization\n" in quiet  # a heading of the list


def test_run_says_where_the_names_are():
    assert "`spiritlevel study list`" in one_line(said("study", "run", "--help").stdout)


# -- what came of the claim ------------------------------------------------------------------


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_claim_comes_before_the_statistics(folder, monkeypatch, columns):
    analysed_by(monkeypatch, lambda rows: OUTCOME)
    claim, heading, found = report(folder, columns=columns).partition(f"\n{NAME}: ")
    assert heading
    assert re.search(r"\bmeasure +\S", found)  # the table of all measures
    assert max(map(len, claim.splitlines())) <= columns
    text = one_line(claim)
    places = [
        text.index(part)
        for part in (
            f"{EXPERIMENT.paper}, Table 2: {EXPERIMENT.title}.",
            f"The claim: {EXPERIMENT.claim}",
            f"Here: partly reproduced at a smaller scale. One part holds, {MARKUP} does not.",
            "Why: The norms differ.",
            "part of the claim here seen",
            "Scaled down (without a preset): ",
            "n = 21 finished runs of 21.",
        )
    ]
    assert places == sorted(places)


def test_parts_stand_in_a_table(folder, monkeypatch):
    analysed_by(monkeypatch, lambda rows: OUTCOME)
    lines = report(folder, columns=120).splitlines()
    rows = [line.split("  ") for line in lines if line.startswith((" a part", " [bold]"))]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert cells[0] == ["a part that holds", "held", "0.5 [0.25, 0.75]"]
    assert cells[1][:2] == [MARKUP, "not held"]
    assert cells[2] == ["a part without interval", "undecided", "2 (n = 1, no interval)"]


def test_the_claim_as_json(folder, monkeypatch):
    analysed_by(monkeypatch, lambda rows: OUTCOME)
    found = json.loads(report(folder, "--json", "-"))
    assert found["format"].startswith("spiritlevel-statistics")  # all that was there is there
    assert EXPERIMENT.measures[0] in found["measures"]
    claim = found["experiment"]
    assert claim["name"] == NAME
    assert claim["claim"] == EXPERIMENT.claim
    assert claim["verdict"] == "partly reproduced at a smaller scale"
    assert claim["conclusion"] == OUTCOME.conclusion
    assert claim["why"] == "The norms differ."
    assert [each["result"] for each in claim["findings"]] == ["held", "not held", "undecided"]
    assert claim["findings"][0]["seen"] == {"value": 0.5, "low": 0.25, "high": 0.75, "n": 7}
    assert claim["findings"][2]["seen"]["low"] == "nan"
    assert (claim["done"], claim["failed"], claim["remaining"]) == (21, 0, 0)
    assert claim["missing"] == []


def test_quiet_leaves_the_verdict(folder, monkeypatch):
    analysed_by(monkeypatch, lambda rows: OUTCOME)
    text = report(folder, "--quiet")
    assert "Here: partly reproduced at a smaller scale." in text
    assert "Scaled down" not in text


def test_same_runs_same_words(folder):
    assert report(folder) == report(folder)


def test_an_unfinished_study_says_so(tmp_path, monkeypatch):
    analysed_by(monkeypatch, lambda rows: OUTCOME)
    text = one_line(report(stored(tmp_path, failed=1, pending=2)))
    assert "Here: partly reproduced at a smaller scale, so far." in text
    assert "n = 18 finished runs of 21. Left out: 1 that failed, 2 that are not finished." in text


def test_what_cannot_be_judged_names_what_is_missing(tmp_path, monkeypatch):
    analysed_by(monkeypatch, lambda rows: {row["variant"]: row for row in rows}["R = 10"])
    folder = stored(tmp_path, pending=3)
    text = report(folder)
    assert "Here: cannot be judged by these runs." in text
    assert "  • No run is finished yet with variant: R = 10.\n" in text
    assert "part of the claim" not in text
    assert f"\n{NAME}: " in text  # what the statistics say is there all the same
    claim = json.loads(report(folder, "--json", "-"))["experiment"]
    assert claim["verdict"] == "cannot be judged by these runs"
    assert claim["missing"] == ["No run is finished yet with variant: R = 10."]
    assert claim["findings"] == []


def test_a_study_that_is_no_experiment_has_statistics_alone(tmp_path):
    planted(tmp_path).close()
    assert report(tmp_path).startswith("planted: No measure can be judged by the gap")
    assert "experiment" not in json.loads(report(tmp_path, "--json", "-"))


def test_an_experiment_without_runs_of_its_own_names_the_study_to_run():
    text = said("study", "run", "000-fig-3", code=1).stderr
    assert "it looks at those of '000-table-3'. Run that study; its report judges both." in text


def test_all_experiments_on_the_same_runs_are_reported(folder, monkeypatch):
    own = dataclasses.replace(EXPERIMENT, analysis=lambda _, rows: OUTCOME)
    other = dataclasses.replace(own, name="001-fig-99", title="another look", rows_of=NAME)
    monkeypatch.setattr(registry, "of_study", lambda study: [own, other])
    text = one_line(report(folder))
    assert text.index(own.title) < text.index("another look")
    found = json.loads(report(folder, "--json", "-"))
    assert found["experiment"]["name"] == NAME
    assert [each["name"] for each in found["more_experiments"]] == ["001-fig-99"]


# -- python -m -------------------------------------------------------------------------------


def test_the_package_itself_can_be_run():
    done = fresh.run("-m", "spiritlevel", "--version")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"spiritlevel {sl.__version__} (torch ")
