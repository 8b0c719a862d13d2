"""Studies that may be read and not written: every command that only reads works on them."""

import contextlib
import os
import pathlib
import shutil
import sqlite3
import stat
import tempfile

import pytest

import spiritlevel as sl
from population.tiny_study import lasting, tiny
from spiritlevel.cli.app import app
from spiritlevel_lab import Store, execute
from spiritlevel_lab.pages.watch import Watched
from spiritlevel_lab.population.storage import checksums

NOBODY = 65534


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("finished") / "study"
    with Store.create(folder, tiny(seeds=3)) as store:
        execute(store)
    return folder


@pytest.fixture
def place():
    """A folder that everybody may enter, unlike pytest's."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield pathlib.Path(folder)


@contextlib.contextmanager
def not_writable(folder: pathlib.Path):
    """As on a read-only disk; root, who may write anywhere, is somebody else meanwhile."""
    modes = {path: path.stat().st_mode for path in (folder, *folder.rglob("*"))}
    for path, mode in modes.items():
        os.chmod(path, 0o555 if stat.S_ISDIR(mode) else 0o444)
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        for path, mode in modes.items():
            if path.exists():
                os.chmod(path, stat.S_IMODE(mode))


def content(folder: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run(*words: object) -> None:
    with pytest.raises(SystemExit) as ended:
        app([str(word) for word in words])
    assert ended.value.code in (0, None)


@pytest.mark.skipif(os.name == "nt", reason="permissions of files are others there")
def test_every_command_that_reads(finished, place, capsys, monkeypatch):
    # Drawing takes most of the time, and reads nothing.
    monkeypatch.setattr("spiritlevel.pages.figures.save", lambda figure, kind: b"drawn")
    folder, out = place / "study", place / "out"
    shutil.copytree(finished, folder)
    out.mkdir()
    os.chmod(out, 0o777)
    before = content(folder)
    # Once as the owner: who plays somebody else may not be allowed to import what is needed.
    look_at(finished, out / "first")
    os.chmod(out / "first", 0o777)
    with not_writable(folder):
        look_at(folder, out / "second")
    assert content(folder) == before
    for name in ("page.html", "tables/runs.csv", "tables/epochs.csv"):
        first, second = ((out / part / name).read_text() for part in ("first", "second"))
        assert first == second
    assert capsys.readouterr().out.count("6 of 6 runs done") == 2


def look_at(folder: pathlib.Path, out: pathlib.Path) -> None:
    run("study", "status", folder)
    run("study", "report", folder, "--html", out / "page.html")
    run("study", "export", folder, "--out", out / "tables")
    run("study", "figures", folder, "--out", out / "figures", "--measures", "head.trace")
    run("watch", folder, "--json", out / "watch.json")


def test_what_is_read_is_what_is_there(finished, place):
    shutil.copytree(finished, place / "study")
    whole = lasting(finished)
    with not_writable(place / "study"):
        assert lasting(place / "study") == whole


def test_a_log_that_was_left_behind_is_read_too(finished, place):
    """The newest rows stand in the log; SQLite alone would have to write beside it."""
    folder = place / "study"
    shutil.copytree(finished, folder)
    with Store.open(folder) as store:
        store.retry_failed()
        writing = sqlite3.connect(folder / "runs.sqlite")
        writing.execute("UPDATE runs SET seconds = 4321.0")
        checksums.seal_all(writing)
        writing.commit()
        copied = place / "copied"
        shutil.copytree(folder, copied, ignore=shutil.ignore_patterns("*-shm"))
        with not_writable(folder), Store.open(folder) as live:  # another process has it open
            assert {row["seconds"] for row in live.rows("runs")} == {4321.0}
        writing.close()
    assert (copied / "runs.sqlite-wal").stat().st_size > 0
    with not_writable(copied):
        with Store.open(copied) as store:
            assert {row["seconds"] for row in store.rows("runs")} == {4321.0}
        state = Watched(copied).state()
    assert state["waiting"] == ""
    assert {row["seconds"] for row in state["study"]["recent"]} == {4321.0}


def test_writing_is_refused_and_the_copy_is_gone(finished, place, monkeypatch, tmp_path_factory):
    shutil.copytree(finished, place / "study")
    scratch = place / "scratch"
    scratch.mkdir()
    os.chmod(scratch, 0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    with not_writable(place / "study"), Store.open(place / "study") as store:
        assert list(scratch.iterdir())
        with pytest.raises(sl.SpiritlevelError, match="may be read, but not written"):
            store.retry_failed()
        with pytest.raises(sl.SpiritlevelError, match="may be read, but not written"):
            store.claim("here|1|1|1")
    assert list(scratch.iterdir()) == []


def test_a_store_of_an_earlier_version_is_upgraded_in_the_copy_alone(finished, place):
    folder = place / "study"
    shutil.copytree(finished, folder)
    with contextlib.closing(sqlite3.connect(folder / "runs.sqlite")) as old:
        old.execute("DROP TABLE epoch_measurements")
        old.execute("DROP TABLE checksums")
        old.execute("ALTER TABLE epochs DROP COLUMN validation_loss")
        old.execute("ALTER TABLE epochs DROP COLUMN validation_accuracy")
        old.execute("PRAGMA user_version = 1")
        old.execute("PRAGMA journal_mode = DELETE")
    before = content(folder)
    with not_writable(folder), Store.open(folder) as store:
        assert store.rows("epoch_measurements") == []
        assert store.counts().done == 6
    assert content(folder) == before
