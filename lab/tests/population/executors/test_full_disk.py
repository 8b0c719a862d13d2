"""A disk that fills up under several worker processes: said once, nothing lost, and it goes on."""

import errno
import functools
import os

import pytest

import spiritlevel as sl
from fresh import forks
from population.tiny_study import lasting, tiny
from spiritlevel_lab import Store, execute
from spiritlevel_lab.population.executors import local, processes

pytestmark = pytest.mark.sampled(2)  # the others at night

STUDY = {"training": {"epochs": 15, "batch_size": 60}}  # rows enough to need new pages soon


@pytest.fixture(autouse=True)
def quick_start(monkeypatch):
    forks()
    monkeypatch.setattr(processes, "START", "forkserver")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("undisturbed")
    with Store.create(folder, tiny(**STUDY)) as store:
        execute(store)
    return lasting(folder)


def limited(pages: int, store: Store, **options) -> None:
    """SQLite's own "disk is full", by a limit on the size of its file that some rows reach."""
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    local.run_here(store, **options)


def without_room(store: Store, **options) -> None:
    """Files cannot get their names; this process ends with the test."""

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    os.replace = full
    local.run_here(store, **options)


def refused(store: Store, workspace) -> str:
    with pytest.raises(sl.SpiritlevelError) as caught:
        processes.run_processes(store, workspace, workers=2)
    return str(caught.value)


def test_under_the_database(tmp_path, undisturbed, capfd):
    with Store.create(tmp_path, tiny(**STUDY)) as store:
        pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
        text = refused(store, functools.partial(limited, pages))
        counts = store.counts()
        assert 0 < counts.done < 12
        assert (counts.running, counts.failed) == (0, 0)
        whole = {row["run"] for row in store.rows("measurements")}
        assert whole == {row["id"] for row in store.rows("runs") if row["status"] == "done"}
    assert "runs.sqlite' cannot be used: database or disk is full" in text
    assert text.count(f"spiritlevel study resume {tmp_path}") == 1
    assert capfd.readouterr().err == ""  # the error is said by whoever catches it, once
    with Store.open(tmp_path) as store:
        assert execute(store).done == 12
    assert lasting(tmp_path) == undisturbed


def test_under_the_checkpoints(tmp_path, undisturbed, capfd):
    with Store.create(tmp_path, tiny(**STUDY)) as store:
        text = refused(store, without_room)
        assert (store.counts().pending, store.rows("epochs"), store.deaths()) == (12, [], {})
        assert list((store.folder / "checkpoints").iterdir()) == []
        assert "cannot be written: No space left on device" in text
        assert capfd.readouterr().err == ""
        assert execute(store).done == 12
    assert lasting(tmp_path) == undisturbed
