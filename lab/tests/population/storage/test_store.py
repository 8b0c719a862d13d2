"""The store: what is in it, who may take what, and that nothing is lost when it is in trouble."""

import errno
import json
import math
import os
import sqlite3
import time

import pytest

import spiritlevel as sl
from population.tiny_study import lasting, tiny
from spiritlevel_lab import Store, execute
from spiritlevel_lab.population.run_results import (
    EpochMeasurementRow,
    EpochRow,
    MeasurementRow,
    RunResult,
)
from spiritlevel_lab.population.storage import schema
from spiritlevel_lab.population.storage.claims import new_worker

RESULT = RunResult(
    outcome="epochs",
    epochs=(EpochRow(1, 0.5, 0.25, math.inf, 0.75), EpochRow(2, math.nan, 0.0, 0.1, 1.0)),
    measurements=(
        MeasurementRow("head.trace", "", math.nan, None, 0.1, True, "ok", "a text"),
        MeasurementRow("head.trace", "fc", 1e-300, 0.5, None, False, "ok", ""),
    ),
    checkpoint=b"weights",
    num_train=60,
    num_test=500,
    seconds=2.0,
    machine='{"torch": "2"}',
    epoch_measurements=(
        EpochMeasurementRow("head.trace", "", 2.5, None, 0.1, True, "ok", "", epoch=1),
    ),
)


@pytest.fixture
def store(tmp_path):
    with Store.create(tmp_path / "study", tiny()) as opened:
        yield opened


def refusal(function, *arguments) -> str:
    with pytest.raises(sl.SpiritlevelError) as caught:
        function(*arguments)
    return str(caught.value)


def test_everything_comes_back_as_it_went_in(store):
    claim = store.claim(new_worker())
    assert claim.settings == tiny().runs()[0]
    assert store.finish(claim, RESULT)
    [first, second] = store.rows("epochs")
    assert first == {"run": claim.id} | vars(RESULT.epochs[0])
    assert math.isnan(second["train_loss"])
    [whole, layer] = store.rows("measurements")
    assert math.isnan(whole["value"])
    assert layer == {"run": claim.id} | vars(RESULT.measurements[1])
    [early] = store.rows("epoch_measurements")
    assert early == {"run": claim.id} | vars(RESULT.epoch_measurements[0])
    run = store.rows("runs")[0]
    assert (run["status"], run["outcome"], run["num_test"]) == ("done", "epochs", 500)
    assert store.machines() == {run["machine"]: {"torch": "2"}}
    assert store.checkpoint(claim.id).read_bytes() == b"weights"
    assert store.study == tiny()
    assert json.loads((store.folder / "study.json").read_text()) == tiny().to_dict()


def test_the_database_is_set_up_for_several_processes(store):
    connection = store._connection
    answers = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in (
        "journal_mode", "foreign_keys", "synchronous", "busy_timeout")]  # fmt: skip
    assert answers == ["wal", 1, 2, 60_000]
    with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"):
        connection.execute("INSERT INTO epochs VALUES ('nobody', 1, 0, 0, 0, 0, NULL, NULL)")


def test_each_run_is_taken_once_with_every_setting_before_the_next_seed(store):
    worker = new_worker()
    claims = []
    while (claim := store.claim(worker)) is not None:
        claims.append(claim)
    # the grid has two learning rates, and six seeds of each follow one another
    in_order = [tiny().runs()[6 * rate + seed].id for seed in range(6) for rate in range(2)]
    assert [claim.id for claim in claims] == in_order
    assert {claim.attempt for claim in claims} == {1}
    assert store.counts().running == 12


def test_only_runs_among_those_asked_for_are_taken(store):
    wanted = tiny().runs()[4].id
    assert store.claim(new_worker(), among={wanted}).id == wanted
    assert store.claim(new_worker(), among={wanted}) is None


def test_a_silent_worker_loses_its_run_and_its_late_result_does_not_count(store):
    late = store.claim("elsewhere|1|1|a")
    others = [store.claim(new_worker()) for _ in range(11)]
    assert store.claim(new_worker(), lease=60) is None
    time.sleep(0.02)
    store.heartbeat(others)
    taken = store.claim(new_worker(), lease=0.01)
    assert (taken.id, taken.attempt) == (late.id, 2)
    assert not store.finish(late, RESULT)
    store.fail(late, "too late")
    store.release(late)
    assert store.rows("epochs") == []
    assert store.finish(taken, RESULT)
    assert not store.finish(taken, RESULT)
    assert len(store.rows("epochs")) == 2


def test_a_released_run_waits_again(store):
    claim = store.claim(new_worker())
    store.release(claim)
    assert store.counts().pending == 12
    assert store.claim(new_worker()).attempt == 2


def test_failed_runs_are_kept_with_their_error_until_they_are_tried_again(store):
    store.fail(store.claim(new_worker()), "no luck")
    assert [row["error"] for row in store.rows("runs")][:2] == ["no luck", None]
    assert store.counts().failed == 1
    assert store.retry_failed() == 1
    assert store.counts().pending == 12


def test_seeds_may_be_added_and_finished_runs_stay(store):
    claim = store.claim(new_worker())
    store.finish(claim, RESULT)
    with Store.create(store.folder, tiny(seeds=8)) as more:
        assert (more.counts().total, more.counts().done) == (16, 1)
        assert [s.id for s in more.settings()] == [run.id for run in tiny(seeds=8).runs()]


def test_another_study_in_the_same_folder_is_refused(store):
    text = refusal(Store.create, store.folder, tiny(seeds=3))
    assert "6 of its 12 runs are not in 'tiny'. Choose another --out" in text
    assert store.counts().total == 12


def test_a_newer_store_is_refused_untouched(store):
    store._connection.execute("PRAGMA user_version = 7")
    store.close()
    before = (store.folder / "runs.sqlite").read_bytes()
    for function, arguments in ((Store.open, ()), (Store.create, (tiny(),))):
        text = refusal(function, store.folder, *arguments)
        assert "written by a newer spiritlevel (format 7; this one knows up to 3)" in text
        assert "pip install -U spiritlevel" in text
    assert (store.folder / "runs.sqlite").read_bytes() == before


def as_version_1(folder) -> list:
    """Take a store back to the format before validation data and measures along the way."""
    with sqlite3.connect(folder / "runs.sqlite") as connection:
        for name in ("loss", "accuracy"):
            connection.execute(f"ALTER TABLE epochs DROP COLUMN validation_{name}")
        connection.execute("DROP TABLE epoch_measurements")
        connection.execute("DROP TABLE checksums")
        connection.execute("PRAGMA user_version = 1")
        rows = connection.execute("SELECT * FROM epochs").fetchall()
    connection.close()
    return rows


def columns_of(folder) -> list[list[str]]:
    with sqlite3.connect(folder / "runs.sqlite") as connection:
        found = [
            [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            for table in ("runs", "epochs", "measurements", "epoch_measurements")
        ]
    connection.close()
    return found


@pytest.mark.parametrize("way", [Store.open, lambda folder: Store.create(folder, tiny())])
def test_an_older_store_is_brought_up_to_date_and_goes_on(store, tmp_path, way):
    fresh = columns_of(store.folder)
    store.finish(store.claim(new_worker()), RESULT)
    store.close()
    before = as_version_1(store.folder)
    assert len(before[0]) == 6
    with way(store.folder) as upgraded:
        rows = upgraded.rows("epochs")
        assert tuple(rows[0].values())[:6] == before[0]
        assert {row["validation_loss"] for row in rows} == {None}
        assert upgraded.rows("epoch_measurements") == []
        assert upgraded.counts().done == 1
        assert upgraded.finish(upgraded.claim(new_worker()), RESULT)
    assert columns_of(store.folder) == fresh
    with Store.open(store.folder) as again:
        assert again.counts().done == 2


def test_an_upgrade_that_is_interrupted_changes_nothing(store, monkeypatch):
    store.finish(store.claim(new_worker()), RESULT)
    store.close()
    as_version_1(store.folder)
    before = columns_of(store.folder)
    broken = schema.UPGRADES | {1: (*schema.UPGRADES[1], "no statement at all")}
    with monkeypatch.context() as patch:
        patch.setattr(schema, "UPGRADES", broken)
        assert "cannot be used" in refusal(Store.open, store.folder)
    assert columns_of(store.folder) == before
    with Store.open(store.folder) as upgraded:
        assert len(upgraded.rows("epochs")) == 2


def test_what_is_no_store_is_refused(tmp_path):
    assert "must hold a study (runs.sqlite). There is none" in refusal(Store.open, tmp_path)
    (tmp_path / "runs.sqlite").write_bytes(b"")
    assert "was stopped before it had any runs" in refusal(Store.open, tmp_path)
    (tmp_path / "runs.sqlite").write_bytes(b"no database at all" * 99)
    assert "is damaged or was edited: file is not a database" in refusal(Store.open, tmp_path)
    (tmp_path / "file").write_bytes(b"")
    assert "cannot be made: File exists" in refusal(Store.create, tmp_path / "file", tiny())


def test_a_full_disk_under_the_database_loses_nothing(tmp_path):
    # SQLite's own "disk is full", by a limit on the size of its file that some of the rows reach.
    study = tiny(training={"epochs": 15, "batch_size": 60})
    with Store.create(tmp_path / "disturbed", study) as store:
        pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
        store._connection.execute(f"PRAGMA max_page_count = {pages}")
        text = refusal(execute, store)
        assert "runs.sqlite' cannot be used: database or disk is full" in text
        assert f"spiritlevel study resume {store.folder}" in text
        finished = store.counts().done
        assert 0 < finished < 12
        assert store.counts().failed == 0
    with Store.open(tmp_path / "disturbed") as store:
        assert store.counts().done == finished
        assert execute(store).done == 12
    with Store.create(tmp_path / "undisturbed", study) as store:
        execute(store)
    assert lasting(tmp_path / "disturbed") == lasting(tmp_path / "undisturbed")


def test_a_full_disk_under_a_checkpoint_gives_the_run_back(store, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        text = refusal(execute, store)
    assert "cannot be written: No space left on device" in text
    assert (store.counts().pending, store.rows("epochs")) == (12, [])
    assert list((store.folder / "checkpoints").iterdir()) == []
    assert execute(store).done == 12
