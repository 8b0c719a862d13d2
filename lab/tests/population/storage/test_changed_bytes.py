"""A changed byte of a store is an error, or changes nothing: by every way of reading it."""

import contextlib
import json
import pathlib
import random
import shutil
import sqlite3
import warnings

import pytest

import spiritlevel as sl
from population.tiny_study import TABLES, tiny, without_checksums
from spiritlevel_lab import Store, execute
from spiritlevel_lab.pages.report.study import page_of
from spiritlevel_lab.pages.watch import Watched
from spiritlevel_lab.population import control
from spiritlevel_lab.population.executors import local
from spiritlevel_lab.population.export import export
from spiritlevel_lab.population.population import Population
from spiritlevel_lab.population.population_statistics import statistics

PLACES, APART = 330, 30  # of all that are tried, those of a day
MEASURED = {"measure_every": 1, "seeds": 4, "training": {"epochs": 3, "batch_size": 20}}


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("original") / "store"
    with Store.create(folder, tiny(**MEASURED)) as store:
        execute(store)
    return folder


@pytest.fixture(scope="module")
def truth(original) -> dict:
    return seen(original)


def flip(content: bytearray, draw: random.Random) -> None:
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)


def overwrite(content: bytearray, draw: random.Random) -> None:
    start = draw.randrange(len(content))
    for place in range(start, min(start + draw.choice([1, 4, 16]), len(content))):
        content[place] = draw.randrange(256)


def zero(content: bytearray, draw: random.Random) -> None:
    start, count = draw.randrange(len(content)), draw.choice([1, 8, 64, 512, 4096])
    content[start : start + count] = bytes(len(content[start : start + count]))


DAMAGES = (flip, overwrite, zero)


def seen(folder: pathlib.Path) -> dict:
    """What every way of reading says, in plain types; an error by its name alone."""

    def status():
        with Store.open(folder) as store:
            return control.state(store).to_dict(), [run.to_dict() for run in store.settings()]

    def tables():
        with Store.open(folder) as store:
            paths = export(store, folder.parent / "tables")
        return [pathlib.Path(path).read_text("utf-8") for path in paths]

    def numbers():
        with Store.open(folder) as store:
            return statistics(Population.of(store)).to_dict()

    def report():
        with Store.open(folder) as store:
            return json.dumps(page_of(store).to_dict()).replace(str(folder), "")

    def watch():
        state = Watched(folder).state()
        return {"error": state["waiting"]} if state["waiting"] else state["study"]

    def resume():
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # as the command, which says it and fails
            control.resume(folder).close()
        with Store.open(folder) as store:
            found = [store.rows(table) for table in TABLES]
            weights = [store.checkpoint(row["id"]).read_bytes() for row in found[0]]
        return found, weights, (folder / "study.json").read_bytes()

    return {look.__name__: said(look) for look in (watch, status, tables, numbers, report, resume)}


def said(look) -> object:
    try:
        found = look()
    except (sl.SpiritlevelError, UserWarning) as error:
        return {"error": str(error)}
    return found


def is_error(found: object) -> bool:
    return isinstance(found, dict) and list(found) == ["error"]


def check(folder: pathlib.Path, truth: dict) -> int:
    """How many ways of reading said that something is wrong; the others must say the truth."""
    found = seen(folder)
    wrong = [way for way in truth if found[way] != truth[way] and not is_error(found[way])]
    assert wrong == []
    return sum(is_error(each) for each in found.values())


def damaged(original: pathlib.Path, folder: pathlib.Path, file: str, seed: int) -> None:
    shutil.copytree(original, folder)
    path, draw = folder / file, random.Random(seed)
    content = bytearray(path.read_bytes())
    while content == path.read_bytes():
        DAMAGES[(seed + seed // APART) % len(DAMAGES)](content, draw)
    path.write_bytes(content)


@pytest.mark.sampled(APART // 2)
@pytest.mark.parametrize("seed", range(PLACES))
def test_of_the_database(original, truth, tmp_path, seed):
    damaged(original, tmp_path / "store", "runs.sqlite", seed)
    check(tmp_path / "store", truth)


@pytest.fixture(scope="module")
def with_log(tmp_path_factory) -> pathlib.Path:
    """As a process leaves it that was killed: the newest rows are in the log, and nowhere else."""
    folder = tmp_path_factory.mktemp("with_log")
    with Store.create(folder / "open", tiny(**MEASURED)) as store:
        local.run_here(store)
        shutil.copytree(folder / "open", folder / "store")
    (folder / "store" / "runs.sqlite-shm").unlink()
    return folder / "store"


@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", range(60))
def test_of_its_log(with_log, tmp_path, seed):
    for copy in ("store", "b/store"):
        shutil.copytree(with_log, tmp_path / copy)
    log = tmp_path / "store" / "runs.sqlite-wal"
    assert log.stat().st_size > 4096
    content = bytearray(log.read_bytes())
    flip(content, random.Random(seed))
    log.write_bytes(content)
    found, truth = look_again(tmp_path / "store"), look_again(tmp_path / "b" / "store")
    assert not is_error(truth["counts"])
    assert all(is_error(found[way]) or found[way] == truth[way] for way in truth)


def look_again(folder: pathlib.Path) -> dict:
    """What a store with its log says first; the rest is read from the same database."""

    def counts():
        with Store.open(folder) as store:
            return store.counts(), [store.rows(table) for table in TABLES]

    def watch():
        state = Watched(folder).state()
        return {"error": state["waiting"]} if state["waiting"] else state["study"]

    return {look.__name__: said(look) for look in (watch, counts)}


@pytest.mark.parametrize("damage", DAMAGES)
def test_of_the_weights_and_the_definition(original, truth, tmp_path, damage):
    shutil.copytree(original, tmp_path / "store")
    draw = random.Random(0)
    for path in (
        *(tmp_path / "store" / "checkpoints").iterdir(),
        tmp_path / "store" / "study.json",
    ):
        before = path.read_bytes()
        content = bytearray(before)
        while content == before:
            damage(content, draw)
        path.write_bytes(content)
        found = seen(tmp_path / "store")
        assert is_error(found.pop("resume")) == (path.suffix != ".json")
        assert all(found[way] == truth[way] for way in found)
        if path.suffix == ".json":  # the database counts, and it is written anew
            assert path.read_bytes() == before
        path.write_bytes(before)


def test_a_row_that_is_gone_or_came_from_elsewhere(original, tmp_path):
    statements = (
        "DELETE FROM epochs WHERE epoch = 2 AND run = (SELECT min(id) FROM runs)",
        "DELETE FROM measurements",
        "DELETE FROM meta WHERE key LIKE 'checkpoint:%'",
        "DELETE FROM machines",
        "UPDATE machines SET description = json_set(description, '$.more', 1)",
        "DELETE FROM checksums WHERE part = 'epochs'",
        "DELETE FROM checksums WHERE part = 'runs'",
        "UPDATE epoch_measurements SET value = value + 1e-12",
        "UPDATE runs SET seconds = seconds + 1e-9",
        "UPDATE measurements SET text = text || ' '",
        "CREATE TRIGGER more AFTER UPDATE ON runs BEGIN DELETE FROM epochs; END",
    )
    for i, statement in enumerate(statements):
        folder = shutil.copytree(original, tmp_path / str(i))
        with contextlib.closing(sqlite3.connect(folder / "runs.sqlite")) as connection, connection:
            assert connection.execute(statement).rowcount != 0
        found = seen(folder)
        assert is_error(found["tables"]), statement
        assert is_error(found["resume"]), statement


def test_a_row_that_changed_is_not_written_over(original, tmp_path):
    folder = shutil.copytree(original, tmp_path / "store")
    with Store.open(folder) as store:
        with contextlib.closing(sqlite3.connect(folder / "runs.sqlite")) as connection, connection:
            connection.execute("UPDATE runs SET status = 'failed', attempt = 3")
        with pytest.raises(sl.SpiritlevelError, match="has changed since it was written"):
            store.retry_failed()


def test_a_store_without_checksums_is_read_and_gets_them(original, truth, tmp_path):
    folder = shutil.copytree(original, tmp_path / "store")
    without_checksums(folder)
    assert Watched(folder).state()["study"] == truth["watch"]
    assert seen(folder) == truth
    with contextlib.closing(sqlite3.connect(folder / "runs.sqlite")) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (3,)
        assert connection.execute("SELECT count(*) FROM checksums").fetchone()[0] > 4 * 8


def test_a_changed_number_of_the_format_does_not_switch_them_off(original, tmp_path):
    for version in (0, 1, 2):
        folder = shutil.copytree(original, tmp_path / str(version))
        with contextlib.closing(sqlite3.connect(folder / "runs.sqlite")) as connection, connection:
            connection.execute(f"PRAGMA user_version = {version}")
        assert all(is_error(each) for each in seen(folder).values())
