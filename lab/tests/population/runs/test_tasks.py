"""Runs that do something else than train one network: through the same store, just as safe."""

import math
import signal

import pytest
import torch
from typer.testing import CliRunner

import spiritlevel as sl
from fresh import forks
from population.tiny_study import tiny, workspace
from spiritlevel.cli.app import app
from spiritlevel_lab import RunSettings, Store, Study, execute, task_result
from spiritlevel_lab.population import control
from spiritlevel_lab.population.population import Population
from spiritlevel_lab.population.population_statistics import default_target, statistics
from spiritlevel_lab.population.runs.running import run_one

pytestmark = pytest.mark.sampled(2)  # the others at night

MODULE = """
import os, pathlib, signal
import torch
from spiritlevel_lab import task_result

def toss(settings, device):
    task = settings.task.arguments
    if task.get("marks"):
        lost = pathlib.Path(task["marks"]) / settings.id
        if not lost.exists():
            lost.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    noise = torch.randn(task["count"]).double()  # of the run's own seed, whatever came before
    return task_result(settings, {"mean": noise.mean(), "spread": float(noise.std())})

def named(settings, device):
    first, seed = settings.task.arguments["first"], float(settings.seed)
    return task_result(settings, {first: seed, "other": 2.0, "third": 3.0 * seed})

def wrong(settings, device):
    return {"mean": 1.0}

def broken(settings, device):
    raise ValueError("no luck")

number = 3
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "coins.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)


def study(**changes) -> Study:
    fields = {
        "name": "coins",
        "task": {"name": "coins:toss", "count": 5},
        "grid": {"task.count": [5, 50]},
        "seeds": 4,
    }
    return Study.from_dict(fields | changes)


def test_a_task_goes_into_the_store_and_out_into_tables_and_statistics(tmp_path):
    control.check(study())
    with Store.create(tmp_path / "store", study()) as store:
        assert execute(store).done == 8
        rows = Population.of(store).rows
        found = statistics(store, target="spread")
        assert store.rows("epochs") == []
        assert not (store.folder / "checkpoints").exists()
    assert [row["task.count"] for row in rows] == [5] * 4 + [50] * 4
    assert {row["outcome"] for row in rows} == {"done"}
    assert list(found.measures) == ["mean"]
    assert found.n == 8
    means = [row["mean"] for row in rows]
    assert len(set(means)) == 8
    assert rows[0]["mean"] == run_one(study().runs()[0]).measurements[0].value


def test_statistics_without_a_training_ask_for_a_target_of_the_study(tmp_path):
    with Store.create(tmp_path / "store", study()) as store:
        execute(store)
        with pytest.raises(sl.SpiritlevelError, match=r"no 'gap'.* own numbers .*: mean, spread"):
            statistics(store)
        with pytest.raises(sl.SpiritlevelError, match=r"or a measure .* Did you mean 'spread'"):
            statistics(store, target="spraed")
        assert default_target(store) == "mean"


@pytest.mark.parametrize("command", [["study", "report"], ["report", "-o", "page.html"]])
def test_reports_of_a_task_need_no_target(command, tmp_path, monkeypatch):
    """As the command line says after a run: next, `spiritlevel study report FOLDER`."""
    monkeypatch.chdir(tmp_path)
    with Store.create("store", study()) as store:
        execute(store)
    result = CliRunner().invoke(app, [*command, "store"])
    assert result.exit_code == 0, result.output
    is_page = command[0] == "report"
    text = (tmp_path / "page.html").read_text("utf-8") if is_page else result.stdout
    assert "No measure can be judged by the mean: only 2 settings" in text


@pytest.mark.parametrize("name", ["lr", "error", "seed", "status", "run", "seconds", "task.first"])
def test_a_number_does_not_hide_a_column_of_every_row(name):
    with pytest.raises(sl.SpiritlevelError, match="names of their own") as error:
        run_one(named(name).runs()[0])
    assert f"Got {name!r}" in str(error.value)
    assert f"'final_{name}'" in str(error.value)


def test_the_target_of_a_task_differs_between_runs_and_others_are_named(tmp_path):
    with Store.create(tmp_path / "store", named("value")) as store:
        execute(store)
        assert default_target(store) == "third"  # the first by name, other, is always 2
    result = CliRunner().invoke(app, ["study", "report", str(tmp_path / "store")])
    said = " ".join(result.stdout.split())
    assert "numbers that differ between runs. Others, for --target: value." in said
    chosen = ["study", "report", str(tmp_path / "store"), "--target", "value"]
    assert "for --target" not in CliRunner().invoke(app, chosen).stdout


def test_a_task_may_have_a_gap_of_its_own(tmp_path):
    with Store.create(tmp_path / "store", named("gap")) as store:
        execute(store)
        assert statistics(store, target="gap").n == 4


def named(name: str) -> Study:
    task = {"name": "coins:named", "first": name}
    return study(task=task, grid={"task.first": [name], "lr": [0.1, 0.2]}, seeds=2)


def test_target_of_networks_is_the_gap(tmp_path):
    with Store.create(tmp_path / "store", tiny()) as store:
        assert default_target(store) == "gap"
        execute(store)
        assert default_target(store) == "gap"


def test_a_task_that_is_killed_goes_on_to_the_rows_of_an_undisturbed_one(tmp_path):
    with Store.create(tmp_path / "here", study(seeds=1)) as store:
        execute(store)
    marks = tmp_path / "marks"
    marks.mkdir()
    killed = study(task={"name": "coins:toss", "marks": str(marks)}, seeds=1)
    Store.create(tmp_path / "there", killed).close()
    for expected in (-signal.SIGKILL, -signal.SIGKILL, 0):
        process = forks().Process(target=workspace, args=(str(tmp_path / "there"),))
        process.start()
        process.join(60)
        assert process.exitcode == expected
    here, there = (values_in(tmp_path / name) for name in ("here", "there"))
    assert here == there


def values_in(folder):
    with Store.open(folder) as store:
        return [(row["measure"], row["value"]) for row in store.rows("measurements")]


def test_what_goes_wrong_in_a_task_is_kept_with_the_run(tmp_path):
    for name, text in (
        ("coins:wrong", "must return a RunResult. Got dict"),
        ("coins:broken", "ValueError: no luck"),
    ):
        with Store.create(tmp_path / name, study(task=name, grid={}, seeds=1)) as store:
            assert execute(store).failed == 1
            assert text in control.state(store).failures[0][1]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("coin:toss", "The module 'coin' of the task 'coin:toss' cannot be found"),
        ("coins:tos", "has no 'tos'. Did you mean 'toss'"),
        ("coins:number", "it is 3, which no Python file defines"),
        ("no_such_task", "'no_such_task' must be 'module:function' or one of"),
    ],
)
def test_a_task_that_is_not_there_is_refused_before_the_first_run(name, text):
    with pytest.raises(sl.SpiritlevelError) as caught:
        control.check(study(task=name, grid={}))
    assert text in str(caught.value)


def test_measurements_and_reports_keep_their_errors():
    [settings] = study(grid={}, seeds=1).runs()
    assert isinstance(settings, RunSettings)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU(), torch.nn.Linear(4, 2))
    batch = (torch.randn(9, 3), torch.randint(2, (9,)))
    report = sl.measure(net.eval(), batch, measures=["curvature.trace"], rtol=0.5)
    trace = report["curvature.trace"]
    [one] = task_result(settings, {"renamed": trace}).measurements
    assert (one.measure, one.value, one.stderr) == ("renamed", trace.value, trace.stderr)
    whole = task_result(settings, report).measurements
    assert {row.layer for row in whole} == {"", "0", "2"}
    [lost] = task_result(settings, {"x": math.nan}).measurements
    assert lost.status == "nonfinite"
