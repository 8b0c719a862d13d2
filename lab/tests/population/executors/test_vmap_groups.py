"""Groups that train together are formed once: nothing of a result depends on who died when."""

import math
import time

import pytest
import torch

import spiritlevel as sl
from fresh import forks
from population.tiny_study import lasting, tiny
from spiritlevel.ground.errors import is_out_of_memory
from spiritlevel_lab import Store, execute
from spiritlevel_lab.population.executors import vmap
from spiritlevel_lab.population.runs import stacked, training_snapshots
from spiritlevel_lab.population.runs.running import run_one
from spiritlevel_lab.population.runs.training_snapshots import packed, unpacked
from spiritlevel_lab.population.storage.claims import new_worker

pytestmark = pytest.mark.sampled(3)  # the others at night

SMALL = {"name": "mlp", "hidden": [6, 5]}


def study(**changes):
    """Float32 with a large step and a threshold: what makes runs end elsewhere."""
    fixed = {"epochs": 12, "batch_size": 16, "momentum": 0.9}
    fields = {"model": SMALL, "training": fixed, "grid": {"lr": [0.3, 0.05]}, "seeds": 3}
    return tiny(**fields | {"stop": {"train_loss": 0.6}} | changes)


@pytest.fixture
def sizes(monkeypatch) -> list:
    """How many runs were trained together each time."""
    real, numbers = vmap.train_together, []

    def counted(settings, *how, **options):
        numbers.append(len(settings))
        return real(settings, *how, **options)

    monkeypatch.setattr(vmap, "train_together", counted)
    return numbers


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict:
    """What comes of the study without an interruption."""
    folder = tmp_path_factory.mktemp("whole")
    with Store.create(folder, study()) as store:
        execute(store, executor="vmap")
    return lasting(folder)


def die_after(folder: str, kept: int) -> None:
    """A worker that is gone once it has stored so many runs of its group."""
    import os

    real = Store.finish

    def finish(self, claim, result):
        nonlocal kept
        if kept == 0:
            os._exit(9)
        kept -= 1
        return real(self, claim, result)

    Store.finish = finish
    with Store.open(folder) as store:
        vmap.run_together(store)


@pytest.mark.parametrize("kept", [0, 1, 4, 5])
def test_a_group_that_was_stored_in_part_gives_the_same_bits(tmp_path, whole, kept):
    Store.create(tmp_path, study()).close()
    process = forks().Process(target=die_after, args=(str(tmp_path), kept))
    process.start()
    process.join(60)
    assert process.exitcode == 9
    with Store.open(tmp_path) as store:
        assert store.counts().done == kept
        execute(store, executor="vmap")
    assert lasting(tmp_path) == whole


@pytest.fixture
def epochs(monkeypatch) -> list:
    """The epochs that were trained, of all groups."""
    real, trained = stacked._train_epoch, []

    def counted(stack, active, epoch):
        trained.append(epoch)
        return real(stack, active, epoch)

    monkeypatch.setattr(stacked, "_train_epoch", counted)
    return trained


def test_a_group_that_was_trained_is_not_trained_again(tmp_path, whole, epochs):
    Store.create(tmp_path, study()).close()
    process = forks().Process(target=die_after, args=(str(tmp_path), 2))
    process.start()
    process.join(60)
    with Store.open(tmp_path) as store:
        assert store.counts().done == 2
        execute(store, executor="vmap")
    assert lasting(tmp_path) == whole
    assert epochs == []
    assert not (tmp_path / vmap.UNFINISHED).exists()


def test_time_of_training_before_an_interruption_counts(tmp_path):
    Store.create(tmp_path, study()).close()
    process = forks().Process(target=die_after, args=(str(tmp_path), 0))
    process.start()
    process.join(60)
    [file] = (tmp_path / vmap.UNFINISHED).iterdir()
    file.write_bytes(packed(unpacked(file) | {"seconds": 600.0}))
    with Store.open(tmp_path) as store:
        execute(store, executor="vmap")
        taken = [row["seconds"] for row in store.rows("runs")]
    assert all(100.0 < seconds < 160.0 for seconds in taken)  # a sixth of it, and measuring


def help_out(folder: str) -> None:
    """One of two processes, of which each takes a while to measure a network."""
    real = vmap.complete

    def slowly(member, **options):
        time.sleep(0.3)
        return real(member, **options)

    vmap.complete = slowly
    with Store.open(folder) as store:
        vmap.work_together(store, workers=2)


def test_one_process_trains_and_two_measure(tmp_path, whole):
    with Store.create(tmp_path, study()) as store:
        vmap.groups_of(store)
        assert len(store.entry(vmap.KEY)) == 1
    processes = [forks().Process(target=help_out, args=(str(tmp_path),)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert lasting(tmp_path) == whole
    with Store.open(tmp_path) as store:
        assert len({row["worker"] for row in store.rows("runs")}) == 2


def test_a_file_of_trained_networks_that_cannot_be_read_is_not_used(tmp_path, whole, sizes):
    with Store.create(tmp_path, study()) as store:
        group = next(iter(vmap.groups_of(store).values()))
        folder = tmp_path / vmap.UNFINISHED
        folder.mkdir()
        (folder / f"{group[0].id}.trained.pt").write_bytes(
            training_snapshots.BEGINNING + b"damaged"
        )
        assert vmap.snapshots_of(store, group).is_trained
        execute(store, executor="vmap")
    assert sizes == [6]
    assert lasting(tmp_path) == whole


def test_a_disk_without_room_for_them_costs_nothing_else(tmp_path, whole, sizes, monkeypatch):
    def full(*_):
        raise sl.SpiritlevelError("The file cannot be written: No space left on device.")

    monkeypatch.setattr(training_snapshots, "write_atomically", full)
    with Store.create(tmp_path, study()) as store:
        execute(store, executor="vmap")
    assert sizes == [6]
    assert lasting(tmp_path) == whole


def test_many_deaths_and_more_workers_change_nothing(tmp_path, whole, sizes):
    with Store.create(tmp_path, study()) as store:
        vmap.groups_of(store)
        for _ in range(4):
            store.claim(new_worker())
            store.release_lost(lease=-1.0)  # silent for longer than that
        assert list(store.deaths().values()) == [4]
        vmap.work_together(store, workers=2)
    assert sizes == [6]
    assert lasting(tmp_path) == whole


def test_failed_members_are_measured_again(tmp_path, whole, epochs, monkeypatch):
    real, broken = vmap.complete, [2, 3]

    def fail(member, **options):
        if broken and len(broken) and broken.pop():
            raise RuntimeError("the disk was away")
        return real(member, **options)

    with Store.create(tmp_path, study()) as store:
        monkeypatch.setattr(vmap, "complete", fail)
        execute(store, executor="vmap")
        assert store.counts().failed == 2
        store.retry_failed()
        epochs.clear()
        execute(store, executor="vmap")
    assert lasting(tmp_path) == whole
    assert epochs == []


def test_a_group_is_cut_into_parts_for_several_workers(tmp_path, sizes):
    with Store.create(tmp_path, study()) as store:
        vmap.work_together(store, workers=2)
        assert [len(group) for group in store.entry(vmap.KEY)] == [3, 3]
    assert sizes == [3, 3]


def test_runs_that_are_added_form_a_group_of_their_own(tmp_path, sizes):
    with Store.create(tmp_path, study()) as store:
        before = vmap.groups_of(store)
    with Store.create(tmp_path, study(seeds=5)) as store:
        after = vmap.groups_of(store)
        assert {id_: after[id_] for id_ in before} == before
        vmap.work_together(store)
    assert sizes == [6, 4]


def test_two_processes_that_start_at_once_agree(tmp_path):
    with Store.create(tmp_path, study()) as store:
        first = vmap.groups_of(store, workers=1)
        # The other had formed its groups before the first had recorded its own.
        formed = vmap._formed(store.settings(), 2, "cpu")
        assert vmap._added(store.entry(vmap.KEY), formed) == store.entry(vmap.KEY)
        assert vmap.groups_of(store, workers=2) == first


@pytest.mark.parametrize(
    "error", [MemoryError("no room"), torch.cuda.OutOfMemoryError("CUDA out of memory")]
)
def test_memory_that_runs_out_is_reported_and_nothing_else_is_tried(tmp_path, monkeypatch, error):
    def full(*_, **__):
        raise error

    with Store.create(tmp_path, study()) as store:
        monkeypatch.setattr(vmap, "train_together", full)
        execute(store, executor="vmap")
        rows = store.rows("runs")
    assert {row["status"] for row in rows} == {"failed"}
    for row in rows:
        assert str(error) in row["error"]
        assert "6 networks together" in row["error"]
        assert "--executor local" in row["error"]


def test_memory_that_runs_out_before_training(tmp_path, monkeypatch):
    def full(*_):
        return torch.empty(2**46)

    monkeypatch.setattr(vmap, "build_model", full)
    with Store.create(tmp_path, study()) as store:
        with pytest.raises(sl.SpiritlevelError, match="Memory ran out before training"):
            execute(store, executor="vmap")
        assert store.counts().pending == 6


def test_errors_of_torch_that_mean_memory():
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**46)
    assert is_out_of_memory(raised.value)
    assert not is_out_of_memory(ValueError("DefaultCPUAllocator"))


def test_companions_change_a_run_by_round_off_alone(tmp_path):
    # In float64 a run with five others, with one other, and alone: the same to round-off.
    precise = study(training={"epochs": 4, "batch_size": 16, "dtype": "float64"})
    runs = precise.runs()
    alone = run_one(runs[0]).epochs[-1].train_loss
    for companions in (runs[:2], runs):
        first = vmap.train_together(companions, "cpu").members[0]
        assert math.isclose(first.history.epochs[-1].train_loss, alone, rel_tol=1e-9)
