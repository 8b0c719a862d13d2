"""What is read from the files of monitors, and from a path that changes while it is watched."""

import json
import math
import os
import shutil

import pytest
import torch

from pages.watch.visits import add_rows, new_study, row, state
from spiritlevel.training import FlatnessMonitor
from spiritlevel.training.monitor.rows import open_sinks
from spiritlevel_lab.pages.watch import Watched, monitors, reading
from spiritlevel_lab.population.storage import copies
from training.learning_rate.rates_problem import small_network


@pytest.mark.parametrize("name", ["run.jsonl", "run.csv"])
def test_what_a_monitor_writes(tmp_path, name):
    measures = ("head.trace", "relative.kappa")
    notes = [f"{each}.{note}" for each in measures for note in ("stderr", "residual", "status")]
    columns = ["step", "epoch", "seconds", *measures, *notes, "status", "text"]
    [sink] = open_sinks(tmp_path / name, columns)
    values = [(0.1 + 0.2, 1e-30), (3e20, math.inf), (math.nan, math.nan)]
    for i, (trace, kappa) in enumerate(values):
        more = {"status": "failed", "text": "one,\n'two'"} if i == 2 else {}
        sink.write(row(i + 1, trace, **{"relative.kappa": kappa, "head.trace.stderr": 0.5}, **more))
    [found] = state(tmp_path)["monitors"]
    assert (found["name"], found["rows"], found["damaged"]) == (name, 3, 0)
    assert (found["steps"], found["epochs"]) == ([1, 2, 3], [0, 0, 0])
    assert found["failed"] == [False, False, True]
    assert [(each["name"], each["values"]) for each in found["measures"]] == [
        ("head.trace", [0.1 + 0.2, 3e20, None]),
        ("relative.kappa", [1e-30, None, None]),
    ]
    assert found["measures"][0]["error"] == 0.5
    [failure] = found["failures"]
    assert (failure["step"], failure["text"].split()) == (3, ["one,", "'two'"])


def test_learning_rates_are_shown_like_any_measure(tmp_path):
    model, x, y = small_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=50.0)
    files = [tmp_path / "run.csv", tmp_path / "run.jsonl"]
    monitor = FlatnessMonitor(
        *(model, (x, y)), measures="head.trace", optimizer=optimizer, every=1, to=files
    )
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    with pytest.warns(RuntimeWarning, match="edge of stability"):
        monitor.step()
    for path in files:
        shown = monitors.monitor_state(path)
        assert [each["name"] for each in shown["measures"]] == list(monitor.names)


def test_half_a_line_and_damaged_lines(tmp_path):
    path = tmp_path / "run.jsonl"
    add_rows(path, row(1), row(2))
    with path.open("ab") as file:
        file.write(b'{"step": \n[[1]]\n"text"\n\xff\xfe\n' + b"[" * 100_000 + b"\n")
        file.write(b'{"step": ' + b"9" * 5000 + b"}\n\n")
        file.write(json.dumps(row(3)).encode())  # its end is not there yet
    [found] = state(path)["monitors"]
    assert (found["steps"], found["damaged"]) == ([1, 2], 6)
    with path.open("a") as file:
        file.write("\n")
    assert state(path)["monitors"][0]["steps"] == [1, 2, 3]


def test_notes_beside_values_and_numbers_that_are_none(tmp_path):
    path = tmp_path / "run.jsonl"
    more = {"a.b.stderr": 0.5, "a.b.status": "not_converged"}
    add_rows(path, row(1, 2.0, measure="a.b"), row(2, "inf", measure="a.b", **more))
    [found] = state(path)["monitors"][0]["measures"]
    assert found == {
        "name": "a.b",
        "values": [2.0, None],
        "newest": "inf",
        "error": 0.5,
        "status": "not_converged",
    }


def test_long_files_are_thinned_and_keep_what_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(monitors, "MOST_POINTS", 10)
    path = tmp_path / "run.jsonl"
    rows = [row(i) for i in range(100)]
    rows[41] = row(41, None, status="failed", text="nan")
    add_rows(path, *rows)
    [found] = state(path)["monitors"]
    assert found["rows"] == 100
    assert found["steps"] == sorted([*range(9, 100, 10), 41])


def test_only_the_end_of_a_huge_file_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(monitors, "MOST_BYTES", 500)
    for name, head in (("a.jsonl", ""), ("a.csv", "step,epoch,seconds,a.b\n")):
        lines = [
            json.dumps({"step": i, "a.b": 1.0}) if name == "a.jsonl" else f"{i},0,0.1,1.0"
            for i in range(200)
        ]
        (tmp_path / name).write_text(head + "".join(f"{line}\n" for line in lines))
        [found] = state(tmp_path / name)["monitors"]
        assert found["steps"][-1] == 199
        end = (tmp_path / name).read_text()[-500:]
        assert found["rows"] == end.count("\n") - 1  # the first line of the end is not whole
        assert found["damaged"] == 0
        assert [each["name"] for each in found["measures"]] == ["a.b"]


def test_a_folder_shows_its_monitors_and_nothing_else(tmp_path):
    add_rows(tmp_path / "b.jsonl", row(1))
    add_rows(tmp_path / "a.jsonl", row(1))
    add_rows(tmp_path / "other.jsonl", {"text": "of another program"})
    (tmp_path / "table.csv").write_text("name,value\nx,1\n")
    (tmp_path / "folder.jsonl").mkdir()
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert [each["name"] for each in state(tmp_path)["monitors"]] == ["a.jsonl", "b.jsonl"]


# -- what comes and goes -------------------------------------------------------------------------


def test_everything_may_come_and_go(tmp_path):
    folder = tmp_path / "later"
    watched = Watched(folder)

    def now():
        return json.loads(watched.answer())

    assert "nothing at" in now()["waiting"]
    folder.mkdir()
    assert "holds neither" in now()["waiting"]
    add_rows(folder / "run.jsonl", row(1), row(2), row(3))
    assert now()["monitors"][0]["steps"] == [1, 2, 3]
    beside = folder / "run.part"  # a run that goes on from step 1 cuts what came later
    add_rows(beside, row(1))
    beside.replace(folder / "run.jsonl")
    assert now()["monitors"][0]["steps"] == [1]
    new_study(folder).close()
    assert (now()["title"], len(now()["monitors"])) == ("tiny", 1)
    shutil.rmtree(folder)
    assert "nothing at" in now()["waiting"]
    new_study(folder).close()
    assert now()["study"]["total"] == 12


def test_a_file_of_another_kind(tmp_path):
    (tmp_path / "model.pt").write_bytes(b"")
    assert "is neither" in state(tmp_path / "model.pt")["waiting"]
    (tmp_path / "run.jsonl").write_bytes(b"")
    assert "no row yet" in state(tmp_path / "run.jsonl")["waiting"]
    (tmp_path / "run.jsonl").write_bytes(b"no row\n")
    assert "FlatnessMonitor(to=...)" in state(tmp_path / "run.jsonl")["waiting"]


def test_the_study_file_itself(tmp_path):
    new_study(tmp_path).close()
    assert state(tmp_path / "runs.sqlite")["study"]["total"] == 12


def test_read_once_while_nothing_changes(tmp_path, monkeypatch):
    path = tmp_path / "run.jsonl"
    add_rows(path, row(1))
    watched = Watched(path)
    reads = []
    real = watched.state
    monkeypatch.setattr(watched, "state", lambda measure: reads.append(1) or real(measure))
    for _ in range(3):
        watched.answer()
    assert len(reads) == 3  # just written: another write could have the same time
    os.utime(path, (1, 1))
    os.utime(tmp_path, (1, 1))
    for _ in range(3):
        watched.answer()
    assert len(reads) == 4
    add_rows(path, row(2))
    os.utime(path, (1, 1))  # the size alone tells
    assert json.loads(watched.answer())["monitors"][0]["steps"] == [1, 2]
    assert len(reads) == 5


def test_stamps_of_files_that_are_not_there(tmp_path):
    assert copies.stamp([tmp_path / "none"]) == (None,)
    assert reading.is_settled((None,))
