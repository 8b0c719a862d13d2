"""Files of a study that were lost or damaged: noticed before work goes on, and nothing is lost."""

import os
import shutil
import signal
import sqlite3

import pytest

import spiritlevel as sl
from fresh import forks
from population.tiny_study import lasting, seal, tiny
from spiritlevel.cli.app import app
from spiritlevel_lab import Store, execute
from spiritlevel_lab.pages.watch import Watched
from spiritlevel_lab.population import control


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "study"
    with Store.create(folder, tiny(seeds=2)) as store:
        execute(store)
    return folder


@pytest.fixture
def study(finished, tmp_path):
    folder = tmp_path / "study"
    shutil.copytree(finished, folder)
    return folder


def weights(folder):
    return sorted((folder / "checkpoints").iterdir())


def forget_checksums(folder):
    """As in a store that an earlier version wrote."""
    with sqlite3.connect(folder / "runs.sqlite") as database:
        database.execute("DELETE FROM meta WHERE key LIKE 'checkpoint:%'")
    database.close()
    seal(folder)


def delete(path):
    path.unlink()


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def grow(path):
    path.write_bytes(path.read_bytes() + b"more")


def flip(path):
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(bytes(data))


def overwrite(path):
    path.write_bytes(b"\0" * path.stat().st_size)


DAMAGES = {
    delete: "missing",
    cut: r"damaged, \d+ of \d+ bytes",
    grow: r"damaged, \d+ of \d+ bytes",
    flip: "damaged, other content",
    overwrite: "damaged, other content",
}


@pytest.mark.parametrize("damage", list(DAMAGES), ids=lambda damage: damage.__name__)
def test_resume_names_the_runs_and_what_to_do(study, damage):
    path = weights(study)[1]
    damage(path)
    before = lasting(study) if path.exists() else None
    with pytest.warns(UserWarning, match=f"{path.stem}: {DAMAGES[damage]}") as caught:
        control.resume(study).close()
    text = str(caught[0].message)
    assert "1 finished run has no intact weights" in text
    assert "numbers are safe" in text
    assert f"spiritlevel study resume {study} --retrain" in text
    if before is not None:
        assert lasting(study) == before


@pytest.mark.parametrize("damage", [delete, cut, grow, overwrite], ids=lambda d: d.__name__)
def test_stores_without_checksums(study, damage):
    forget_checksums(study)
    with Store.open(study) as store:
        assert control.check_files(store) == ""
    damage(weights(study)[0])
    with Store.open(study) as store:
        assert "1 finished run has no intact weights" in control.check_files(store)


@pytest.mark.parametrize("executor", ["local", "vmap"])
def test_training_again_brings_the_same_weights_back(tmp_path, executor):
    with Store.create(tmp_path, tiny(seeds=2)) as store:
        execute(store, executor=executor)
    whole = lasting(tmp_path)
    delete(weights(tmp_path)[0])
    flip(weights(tmp_path)[1])
    control.resume(tmp_path, retrain=True, executor=executor).close()
    assert lasting(tmp_path) == whole
    with Store.open(tmp_path) as store:
        assert control.check_files(store) == ""


def test_the_command_says_it_and_fails(study, capsys):
    delete(weights(study)[0])
    with pytest.raises(SystemExit) as ended:
        app(["study", "resume", str(study)])
    assert ended.value.code == 1
    assert "no intact weights" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(SystemExit) as ended:
        app(["study", "resume", str(study), "--retrain"])
    assert ended.value.code in (0, None)


def test_a_task_without_weights_is_not_missed(tmp_path, monkeypatch):
    (tmp_path / "no_weights.py").write_text(
        "from spiritlevel_lab.population.runs.tasks import task_result\n"
        "def run(settings, device):\n    return task_result(settings, {'mean': 1.0})\n"
    )
    monkeypatch.chdir(tmp_path)
    study = tiny(task="no_weights:run", grid={}, seeds=2)
    with Store.create(tmp_path / "study", study) as store:
        execute(store)
        assert store.counts().done == 2
        assert control.check_files(store) == ""


# -- the database ----------------------------------------------------------------------------


def spoil_pages(path):
    data = bytearray(path.read_bytes())
    for start in range(4096 * 2, len(data), 4096 * 3):
        data[start : start + 600] = os.urandom(600)
    path.write_bytes(bytes(data))


def spoil_heading(path):
    path.write_bytes(b"this is not a database" + path.read_bytes()[22:])


def spoil_definition(path):
    with sqlite3.connect(path) as database:
        database.execute("UPDATE meta SET value = '{\"name' WHERE key = 'study'")
    database.close()


def lose_definition(path):
    with sqlite3.connect(path) as database:
        database.execute("DELETE FROM meta WHERE key = 'study'")
    database.close()


def spoil_settings(path):
    with sqlite3.connect(path) as database:
        database.execute("UPDATE runs SET settings = substr(settings, 1, 40) WHERE seed = 0")
    database.close()


def exchange_settings(path):
    with sqlite3.connect(path) as database:
        database.execute("UPDATE runs SET settings = replace(settings, '0.01', '0.02')")
    database.close()


def lose_table(path):
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE measurements")
    database.close()


def empty(path):
    path.write_bytes(b"")


DATABASES = [
    *(spoil_pages, spoil_heading, spoil_definition, lose_definition, spoil_settings),
    *(exchange_settings, lose_table, empty, delete),
]


@pytest.mark.parametrize("damage", DATABASES, ids=lambda damage: damage.__name__)
def test_a_damaged_database_is_noticed_before_anything_is_written(study, damage):
    for end in ("-wal", "-shm"):
        (study / f"runs.sqlite{end}").unlink(missing_ok=True)
    damage(study / "runs.sqlite")
    spoiled = study / "runs.sqlite"
    before = spoiled.read_bytes() if spoiled.exists() else None
    kept = [path.read_bytes() for path in weights(study)]
    with pytest.raises(sl.SpiritlevelError, match="is damaged") as caught:
        control.resume(study)
    assert "Put back a copy" in str(caught.value)
    assert "--out" in str(caught.value)
    with pytest.raises(sl.SpiritlevelError, match="is damaged"):
        control.run(tiny(seeds=2), study)
    assert [path.read_bytes() for path in weights(study)] == kept
    if before is not None:
        assert spoiled.read_bytes() == before


def test_a_store_without_its_log_is_neither_read_nor_started_anew(finished, tmp_path):
    with Store.create(tmp_path / "open", tiny(seeds=2)) as store:
        execute(store)
        shutil.copytree(tmp_path / "open", tmp_path / "copy")
    (tmp_path / "copy" / "runs.sqlite-wal").unlink()
    kept = [path.read_bytes() for path in weights(tmp_path / "copy")]
    ways = (Store.open, control.resume, lambda folder: control.run(tiny(seeds=2), folder))
    for way in ways:
        with pytest.raises(sl.SpiritlevelError, match="weights of 4 runs that it knows nothing of"):
            way(tmp_path / "copy")
    assert "runs.sqlite-wal" in Watched(tmp_path / "copy").state()["waiting"]
    assert [path.read_bytes() for path in weights(tmp_path / "copy")] == kept
    shutil.copy(tmp_path / "open" / "runs.sqlite", tmp_path / "copy")  # closed: all is in there
    assert lasting(tmp_path / "copy") == lasting(finished)


def limited(folder, limit: int) -> None:
    """A study is made, and no file may become larger than so many bytes; this process ends then."""
    resource = pytest.importorskip("resource")
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        Store.create(folder, tiny(seeds=2))
    except sl.SpiritlevelError as error:
        text = str(error)
        os._exit(3 if "could not be started" in text and "the same command again" in text else 4)
    os._exit(0)


@pytest.mark.skipif(os.name == "nt", reason="no such limits there")
@pytest.mark.parametrize("limit", [0, 1000, 4096, 8192, 20_000])
def test_a_disk_that_is_full_in_the_first_moments(tmp_path, limit):
    process = forks().Process(target=limited, args=(tmp_path / "study", limit))
    process.start()
    process.join(120)
    assert process.exitcode == 3
    with pytest.raises(sl.SpiritlevelError, match="Start it again with `spiritlevel study run`"):
        control.resume(tmp_path / "study")
    with Store.create(tmp_path / "study", tiny(seeds=2)) as store:  # which that command does
        assert store.counts().pending == 4
