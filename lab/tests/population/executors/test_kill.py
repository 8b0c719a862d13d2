"""Killed at any moment and continued, a study ends with exactly the rows of an undisturbed one."""

import random
import signal
import sqlite3
import time

import pytest
import torch

from fresh import forks
from population.tiny_study import (
    lasting,
    seal,
    tiny,
    work_together,
    work_until_statement,
    workspace,
    write_half,
)
from spiritlevel_lab import Store, execute
from spiritlevel_lab.population.executors import processes
from spiritlevel_lab.population.executors.processes import device_of
from spiritlevel_lab.population.storage.claims import is_dead, new_worker

pytestmark = pytest.mark.sampled(3)  # the others at night


def watched():
    """A study with rows in every table."""
    return tiny(measure_every=1)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("undisturbed")
    with Store.create(folder, watched()) as store:
        assert execute(store).done == 12
    return lasting(folder)


def start(target, *arguments):
    process = forks().Process(target=target, args=arguments)
    process.start()
    return process


def start_and_wait_for_work(target, folder):
    """So that a random moment after it falls into a run, however slow the machine is."""
    process = start(target, str(folder))
    with Store.open(folder) as store:
        while process.exitcode is None and not has_taken_a_run(store, process.pid):
            time.sleep(0.001)
    return process


def has_taken_a_run(store, pid: int) -> bool:
    workers = (row["worker"] for row in store.rows("runs"))
    return any(worker.rsplit("|", 3)[1] == str(pid) for worker in workers if worker)


def deaths(folder) -> int:
    """How many of the kills fell into a run, as far as a later worker has found out."""
    with Store.open(folder) as store:
        return sum(store.deaths().values())


def finish(folder) -> None:
    process = start(workspace, str(folder))
    process.join(60)
    assert process.exitcode == 0


def begin_anew(folder) -> None:
    """All runs wait again; how many workers died is kept."""
    for table in ("measurements", "epoch_measurements", "epochs"):
        clear(folder, f"DELETE FROM {table}")
    clear(folder, "UPDATE runs SET status = 'pending', outcome = NULL")


def clear(folder, statement: str) -> None:
    with sqlite3.connect(folder / "runs.sqlite") as connection:
        connection.execute(statement)
    connection.close()
    seal(folder)


@pytest.mark.nightly
def test_killed_inside_a_run_at_8_random_moments(tmp_path, undisturbed):
    Store.create(tmp_path, watched()).close()
    moments = random.Random(0)
    for _ in range(100):  # some moments fall between two runs, or behind the last
        if deaths(tmp_path) >= 8:
            break
        process = start_and_wait_for_work(workspace, tmp_path)
        process.join(moments.uniform(0.0, 0.12))
        if process.exitcode is None:
            process.kill()
            process.join()
        else:  # everything was done before the moment came
            assert process.exitcode == 0
            assert lasting(tmp_path) == undisturbed
            begin_anew(tmp_path)
    assert deaths(tmp_path) >= 8
    finish(tmp_path)
    assert lasting(tmp_path) == undisturbed


def test_killed_while_the_checkpoint_is_written(tmp_path, undisturbed):
    with Store.create(tmp_path, watched()) as store:
        path = store.checkpoint(store.settings()[3].id)
    start_writing = forks().Process(target=write_half, args=(str(path),))
    start_writing.start()
    start_writing.join(60)
    assert start_writing.exitcode == -signal.SIGKILL
    assert [file.name.startswith(f".{path.name}.") for file in path.parent.iterdir()] == [True]
    finish(tmp_path)
    assert lasting(tmp_path) == undisturbed


def test_killed_before_each_statement(tmp_path, undisturbed):
    # One run takes about 24 statements: this is every point of it, and some of the next.
    Store.create(tmp_path, watched()).close()
    for number in range(1, 29):
        process = start(work_until_statement, str(tmp_path), number)
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
    finish(tmp_path)
    assert lasting(tmp_path) == undisturbed


@pytest.mark.nightly
def test_networks_trained_together_and_killed_give_the_same_bits(tmp_path):
    # The members that are finished when a worker dies train once more with the others.
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    for folder in (undisturbed, killed):
        Store.create(folder, watched()).close()
    work_together(str(undisturbed))
    whole = lasting(undisturbed)
    moments = random.Random(1)
    for _ in range(5):
        process = start_and_wait_for_work(work_together, killed)
        process.join(moments.uniform(0.0, 0.2))
        process.kill()
        process.join()
    process = start(work_together, str(killed))
    process.join(60)
    assert process.exitcode == 0
    assert lasting(killed) == whole


def test_two_workers_share_a_store_and_one_is_killed_at_several_moments(tmp_path, undisturbed):
    Store.create(tmp_path, watched()).close()
    moments = random.Random(2)
    for _ in range(20):
        if deaths(tmp_path) >= 4:
            break
        begin_anew(tmp_path)
        steady = start(workspace, str(tmp_path))
        unlucky = start_and_wait_for_work(workspace, tmp_path)
        unlucky.join(moments.uniform(0.0, 0.12))
        unlucky.kill()
        unlucky.join()
        steady.join(60)
        assert steady.exitcode == 0
        finish(tmp_path)  # what was lost after the steady one had looked for the last time
        assert lasting(tmp_path) == undisturbed
    assert deaths(tmp_path) >= 4


def test_two_workers_do_each_run_once(tmp_path, undisturbed):
    Store.create(tmp_path, watched()).close()
    both = [start(workspace, str(tmp_path)) for _ in range(2)]
    for process in both:
        process.join(60)
        assert process.exitcode == 0
    assert lasting(tmp_path) == undisturbed
    with Store.open(tmp_path) as store:
        rows = store.rows("runs")
    assert [row["attempt"] for row in rows] == [1] * 12
    assert len({row["worker"] for row in rows}) == 2


def test_a_run_that_kills_its_workers_is_given_up_and_the_others_are_done(tmp_path, monkeypatch):
    (tmp_path / "deadly_net.py").write_text(
        "import os, signal\nfrom spiritlevel.inputs.models import mlp\n"
        "def make(deadly):\n"
        "    if deadly:\n        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return mlp(hidden=4)\n"
    )
    monkeypatch.chdir(tmp_path)
    forks()
    monkeypatch.setattr(processes, "START", "forkserver")
    study = tiny(model="deadly_net:make", grid={"model.deadly": [True, False]}, seeds=2)
    with Store.create(tmp_path / "study", study) as store:
        counts = execute(store, workers=2)
        assert (counts.done, counts.failed, counts.remaining) == (2, 2, 0)
        failed = [row for row in store.rows("runs") if row["status"] == "failed"]
    assert all("died 3 times on this run, last with exit code -9" in r["error"] for r in failed)


def test_worker_processes_end_with_the_same_rows(tmp_path, undisturbed, monkeypatch):
    forks()
    monkeypatch.setattr(processes, "START", "forkserver")
    with Store.create(tmp_path, watched()) as store:
        assert execute(store, workers=2).done == 12
    assert lasting(tmp_path) == undisturbed


def test_workers_take_turns_on_the_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [device_of(i, "cuda") for i in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert device_of(3, "cpu") == "cpu"
    assert device_of(3, "cuda:0") == "cuda:0"


def test_a_worker_is_dead_only_if_its_process_is_surely_gone():
    own = new_worker()
    where, pid, birth, rest = own.rsplit("|", 3)
    assert not is_dead(own)
    assert is_dead(f"{where}|{pid}|{int(birth) - 1}|{rest}")  # its number is used again
    assert not is_dead(f"elsewhere|{pid}|1|{rest}")
    process = forks().Process(target=int)
    process.start()
    process.join()
    assert is_dead(f"{where}|{process.pid}|{birth}|{rest}")
