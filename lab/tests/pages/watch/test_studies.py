"""What is read from a study, whatever state its store is in."""

import math
import os
import shutil
import sqlite3
import subprocess
import sys

import numpy as np
import pytest

from pages.watch.visits import fail, finish, new_study, state
from population.tiny_study import seal
from spiritlevel_lab.pages.watch import database, reading, studies
from spiritlevel_lab.population.storage import schema
from spiritlevel_lab.population.storage.claims import new_worker


def test_study_in_the_middle(tmp_path):
    with new_study(tmp_path) as store:
        done = [finish(store, i, measures=("head.trace", "norms.weight")) for i in range(3)]
        failed = fail(store, "out of memory")
        store.claim(new_worker())
        found = state(tmp_path, "norms.weight")
    study = found["study"]
    assert (found["title"], found["waiting"], found["monitors"]) == ("tiny", "", [])
    assert study["counts"] == {"pending": 7, "running": 1, "done": 3, "failed": 1}
    assert study["total"] == 12
    assert study["seconds_left"] == 8 * 2.5
    assert study["axes"] == [{"name": "lr", "values": [0.1, 0.01]}]
    assert study["measures"] == ["head.trace", "norms.weight"]
    assert study["measure"] == "norms.weight"
    # of `finish`: values 10, 20, 30; gap 1/(3 + i) + i after the third epoch; both rates first
    points = [(point["x"], point["y"], point["seed"]) for point in study["points"]]
    expected = [(10.0 * (i + 1), pytest.approx(1 / (3 + i) + i), i // 2) for i in range(3)]
    assert points == expected
    [failure] = study["failures"]
    assert (failure["run"], failure["error"]) == (failed, "out of memory")
    recent = [(each["run"], each["status"]) for each in study["recent"]]
    assert [status for _, status in recent] == ["running", "failed", "done", "done", "done"]
    assert {id_ for id_, status in recent if status == "done"} == set(done)
    last = study["recent"][-1]
    assert (last["epochs"], last["train_loss"], last["seconds"]) == (3, pytest.approx(1 / 3), 2.5)


def test_unknown_measure_is_the_first(tmp_path):
    with new_study(tmp_path) as store:
        finish(store, 1, measures=("b.b", "a.a"))
        assert state(tmp_path, "nothing")["study"]["measure"] == "a.a"


def test_curves_against_numpy():
    generator = np.random.default_rng(0)
    lengths = (7, 4, 4, 2)
    values = [generator.normal(size=length) for length in lengths]
    runs = [
        [
            {"epoch": i + 1, "test_loss": float(v), "train_loss": math.nan}
            for i, v in enumerate(each)
        ]
        for each in values
    ]
    found = studies.curves(runs)
    band = found["test_loss"]
    assert band["epoch"] == list(range(1, 8))
    assert band["n"] == [4, 4, 3, 3, 1, 1, 1]
    for i in range(7):
        there = [each[i] for each in values if len(each) > i]
        expected = np.percentile(there, [25, 50, 75])
        got = [band[name][i] for name in ("low", "median", "high")]
        np.testing.assert_allclose(got, expected, rtol=1e-12)
    assert found["train_loss"]["epoch"] == []  # not a number: not in the picture


def test_only_the_newest_runs_are_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(studies, "NEWEST", 2)
    with new_study(tmp_path) as store:
        for i in range(4):
            finish(store, i)
        study = state(tmp_path)["study"]
    assert study["shown"] == 2
    assert [point["x"] for point in study["points"]] == [3.0, 4.0]


def test_a_run_without_epochs_or_with_nan(tmp_path):
    with new_study(tmp_path) as store:
        id_ = finish(store, 1)
        finish(store, 2)
        store._connection.execute("UPDATE measurements SET value = 'nan' WHERE run = ?", (id_,))
        store._connection.execute("DELETE FROM epochs WHERE run != ?", (id_,))
        seal(tmp_path)
        assert state(tmp_path)["study"]["points"] == []


WRITER = """
import sqlite3, sys
from spiritlevel_lab.population.storage import checksums
store = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=0)
store.execute("BEGIN IMMEDIATE")
store.execute("UPDATE runs SET status = 'done'")
checksums.seal_all(store)
print("writing", flush=True)
sys.stdin.readline()
store.execute("COMMIT")
print("written", flush=True)
sys.stdin.readline()
"""


def test_reading_beside_a_writer_makes_no_file_and_blocks_nobody(tmp_path):
    new_study(tmp_path).close()
    files = {"runs.sqlite", "study.json"}
    assert set(os.listdir(tmp_path)) == files  # no log: everybody has closed it
    before = (tmp_path / "runs.sqlite").read_bytes()
    assert state(tmp_path)["study"]["counts"]["pending"] == 12
    assert set(os.listdir(tmp_path)) == files
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "runs.sqlite")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout.readline() == "writing\n"
        assert state(tmp_path)["study"]["counts"]["pending"] == 12  # not committed yet
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "written\n"
        assert (tmp_path / "runs.sqlite").read_bytes() == before  # it is in the log alone
        assert state(tmp_path)["study"]["counts"]["done"] == 12
        process.stdin.write("\n")
        process.stdin.flush()
    assert set(os.listdir(tmp_path)) == files


def test_a_log_that_nobody_has_open(tmp_path):
    with new_study(tmp_path / "a") as store:
        finish(store, 1)
        (tmp_path / "b").mkdir()
        for end in ("", "-wal"):
            shutil.copy(tmp_path / "a" / f"runs.sqlite{end}", tmp_path / "b")
    shown = state(tmp_path / "b")
    assert shown["waiting"] == ""
    assert shown["study"]["counts"]["done"] == 1
    names = sorted(path.name for path in (tmp_path / "b").iterdir())
    assert names == ["runs.sqlite", "runs.sqlite-wal"]  # read from a copy elsewhere


def test_a_store_without_a_log_at_all(tmp_path, monkeypatch):
    new_study(tmp_path).close()
    with sqlite3.connect(tmp_path / "runs.sqlite") as store:
        store.execute("PRAGMA journal_mode = DELETE")
    store.close()
    assert state(tmp_path)["study"]["total"] == 12
    monkeypatch.setattr(database, "PATIENCE", 0.0)
    store = sqlite3.connect(tmp_path / "runs.sqlite", isolation_level=None)
    store.execute("BEGIN EXCLUSIVE")  # its lock counts: half of a change may be in the file
    assert "locked" in state(tmp_path)["waiting"]
    store.close()


@pytest.mark.parametrize(("changes", "looks"), [(2, 3), (100, database.TRIES)])
def test_a_change_while_it_is_read_without_locks(tmp_path, changes, looks):
    new_study(tmp_path).close()
    seen = []

    def query(connection):
        seen.append(connection.execute("SELECT count(*) FROM runs").fetchone()[0])
        if len(seen) <= changes:
            os.utime(tmp_path / "runs.sqlite", (len(seen), len(seen)))
        return len(seen)

    if changes < database.TRIES:
        assert database.read(tmp_path, query) == looks
    else:
        with pytest.raises(reading.Unreadable, match="changing"):
            database.read(tmp_path, query)
    assert seen == [12] * looks


def test_newer_store_is_named_and_left_alone(tmp_path):
    new_study(tmp_path).close()
    with sqlite3.connect(tmp_path / "runs.sqlite") as store:
        store.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    store.close()
    before = (tmp_path / "runs.sqlite").read_bytes()
    text = state(tmp_path)["waiting"]
    assert f"format {schema.VERSION + 1}" in text
    assert "pip install -U spiritlevel" in text
    assert (tmp_path / "runs.sqlite").read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"no database at all" * 100, b"SQLite format 3\0"])
def test_damaged_or_empty_store_is_a_text(tmp_path, content):
    (tmp_path / "runs.sqlite").write_bytes(content)
    found = state(tmp_path)
    assert found["study"] is None
    assert ("no runs yet" if content == b"" else "cannot be read") in found["waiting"]


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE runs SET axes = '{'",
        "UPDATE runs SET axes = '3'",
        "UPDATE meta SET value = '{'",
        "UPDATE meta SET value = '[]'",
        "UPDATE meta SET value = '{}'",
        "DELETE FROM meta",
    ],
)
def test_settings_that_cannot_be_read(tmp_path, damage):
    with new_study(tmp_path) as store:
        store._connection.execute(damage)
        assert "damaged" in state(tmp_path)["waiting"]
