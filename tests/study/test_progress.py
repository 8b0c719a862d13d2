"""Time left against numbers worked out by hand; what is told while runs are at work."""

import io
import itertools
import re

import pytest
from rich.console import Console

from forked import forks
from spiritlevel.cli import console, progress
from spiritlevel.pages.watch.studies import study_state
from spiritlevel.study import Store, control, execute
from spiritlevel.study.executors import processes
from spiritlevel.study.executors import progress as executor_progress
from spiritlevel.study.executors.progress import ProgressReporter, StudyStatus
from spiritlevel.study.run_results import RunResult
from spiritlevel.study.storage import claims
from spiritlevel.study.storage import store as store_module
from spiritlevel.study.storage.claims import new_worker
from study.tiny_study import tiny

pytestmark = pytest.mark.sampled(2)  # the others at night

DAY = 86400.0


class Clock:
    """The time that a module sees; it passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1e9

    def time(self) -> float:
        return self.now

    monotonic = time


@pytest.fixture
def clock(monkeypatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(store_module, "time", found)
    monkeypatch.setattr(claims, "time", found)
    monkeypatch.setattr(executor_progress, "time", found)
    return found


def study_of(folder, runs: int) -> Store:
    return Store.create(folder, tiny(grid={}, seeds=runs))


def take(store: Store, worker: str, count: int) -> list:
    return [store.claim(worker) for _ in range(count)]


def end(store: Store, claim, seconds: float) -> None:
    assert store.finish(claim, RunResult("epochs", (), (), b"", 60, 500, seconds, "{}"))


def left(store: Store) -> float | None:
    """As `study status`, `watch` and the bar have it."""
    said = {
        control.state(store).seconds_left,
        study_state(store.folder, "")["seconds_left"],
        executor_progress.study_status(store).seconds_left,
    }
    [same] = said
    return same


# -- time left -------------------------------------------------------------------------------


def test_one_process(tmp_path, clock):
    with study_of(tmp_path, 12) as store:
        worker = new_worker()
        assert left(store) is None
        for _ in range(3):
            [claim] = take(store, worker, 1)
            assert left(store) != 0.0
            clock.now += 10
            end(store, claim, 10.0)
        assert left(store) == pytest.approx(90)  # 9 wait, 10 s each
        [claim] = take(store, worker, 1)
        assert left(store) == pytest.approx(90)
        clock.now += 4
        store.heartbeat([claim])
        assert left(store) == pytest.approx(86)  # 4 s of them are worked
        clock.now += 26
        store.heartbeat([claim])
        assert left(store) == pytest.approx(80)  # longer than the others: 8 wait all the same
        clock.now += DAY  # the worker is silent: no work was done in that time
        assert left(store) == pytest.approx(80)


def test_four_processes(tmp_path, clock):
    with study_of(tmp_path, 12) as store:
        workers = [new_worker() for _ in range(4)]
        claims = [take(store, worker, 1)[0] for worker in workers]
        clock.now += 10
        end(store, claims[0], 10.0)
        [first] = take(store, workers[0], 1)
        assert left(store) == pytest.approx(27.5)  # 11 runs of 10 s, 4 at a time
        for worker, claim in zip(workers[1:], claims[1:], strict=True):
            end(store, claim, 10.0)
            take(store, worker, 1)
        assert left(store) == pytest.approx(20)  # 8 runs, 4 at a time
        clock.now += 5
        end(store, first, 5.0)
        # 7 runs remain: 5 runs ended in 15 s, a run a 3 s; 45 s of work in 5 runs, 9 s / 4 workers.
        assert left(store) == pytest.approx(7 * 9 / 3)  # its own worker has taken nothing yet


def test_the_last_runs_take_as_long_as_one_of_them(tmp_path, clock):
    with study_of(tmp_path, 8) as store:
        workers = [new_worker() for _ in range(4)]
        for _ in range(2):
            claims = [take(store, worker, 1)[0] for worker in workers]
            last = claims.pop()
            clock.now += 10
            for claim in claims:
                end(store, claim, 10.0)
            if store.counts().pending:
                end(store, last, 10.0)
        assert left(store) == pytest.approx(10)  # not 10 / 4: nobody can help with it
        end(store, last, 10.0)
        assert left(store) == 0.0


def test_networks_trained_together_and_measured_one_by_one(tmp_path, clock):
    with study_of(tmp_path, 64) as store:
        claims = take(store, new_worker(), 64)
        clock.now += 10
        end(store, claims[0], 10.0)
        assert left(store) == pytest.approx(630)


def test_what_trained_together_is_not_trained_again(tmp_path, clock):
    # 80 s of training for 8, half a second for the measures of each.
    seconds = 80 / 8 + 0.5
    with study_of(tmp_path, 16) as store:
        worker = new_worker()
        claims = take(store, worker, 8)
        clock.now += 80
        store.heartbeat(claims)
        for count, claim in enumerate(claims, start=1):
            clock.now += 0.5
            end(store, claim, seconds)
            if count == 2:  # 6 half seconds, and the other group as a whole
                assert left(store) == pytest.approx(6 * 0.5 + 84)
        assert left(store) == pytest.approx(84)
        claims = take(store, worker, 8)
        assert left(store) == pytest.approx(84)
        clock.now += 30
        store.heartbeat(claims)
        assert left(store) == pytest.approx(54)
        clock.now += 50
        for claim in claims[:3]:
            clock.now += 0.5
            end(store, claim, seconds)
        assert left(store) == pytest.approx(2.5)


@pytest.mark.parametrize("runs", [16, 104])
def test_a_cluster_with_four_processors(tmp_path, clock, runs):
    with study_of(tmp_path, runs) as store:
        driver = new_worker()
        out = take(store, driver, 8)  # two a processor
        said = []
        while out and len(said) < 4:
            clock.now += 10
            for claim in out[:4]:
                end(store, claim, 10.0)
            out = out[4:] + [claim for claim in take(store, driver, 4) if claim is not None]
            said.append(left(store))
    expected = {16: [30, 20, 10, 0], 104: [250, 240, 230, 220]}[runs]
    assert said == pytest.approx(expected)


def test_an_earlier_session_and_the_days_between_do_not_count(tmp_path, clock):
    with study_of(tmp_path, 12) as store:
        slow = new_worker()
        for _ in range(4):
            [claim] = take(store, slow, 1)
            clock.now += 10
            end(store, claim, 10.0)
        clock.now += 3 * DAY
        assert left(store) == pytest.approx(80)  # as it went before
        fast = new_worker()
        [claim] = take(store, fast, 1)
        assert left(store) == pytest.approx(80)  # nothing else is known yet
        clock.now += 2
        end(store, claim, 2.0)
        assert left(store) == pytest.approx(14)  # 7 runs of 2 s
        [claim] = take(store, fast, 1)
        store.release(claim)
        clock.now += DAY
        assert left(store) == pytest.approx(14)


def test_failed_runs_take_their_time_too(tmp_path, clock):
    with study_of(tmp_path, 12) as store:
        worker = new_worker()
        [claim] = take(store, worker, 1)
        clock.now += 3
        store.fail(claim, "diverged")
        assert left(store) == pytest.approx(33)
        [claim] = take(store, worker, 1)
        clock.now += 9
        end(store, claim, 9.0)
        assert left(store) == pytest.approx(60)  # 2 runs ended in 12 s, 10 remain


# -- while a run is at work ------------------------------------------------------------------


@pytest.fixture
def always(monkeypatch) -> None:
    monkeypatch.setattr(executor_progress, "EVERY", 0.0)


def test_every_epoch_of_a_long_run_is_told(tmp_path, always):
    told = []
    study = tiny(grid={}, seeds=2, training={"epochs": 3})
    with Store.create(tmp_path, study) as store:
        execute(store, watch=told.append)
    said = [(now.done, now.running, now.epochs) for now in told]
    one = [((epoch, 3),) for epoch in range(4)]
    first, second = ([(done, 1, epochs) for epochs in one] for done in (0, 1))
    assert said == [*first, (1, 0, ()), *second, (2, 0, ())]


def test_epochs_of_networks_that_train_together(tmp_path, always):
    told = []
    study = tiny(grid={"epochs": [2, 3]}, seeds=2)
    with Store.create(tmp_path, study) as store:
        execute(store, executor="vmap", watch=told.append)
    said = [(now.running, now.epochs) for now in told]
    assert said[:4] == [(4, ((epoch, 3),)) for epoch in range(4)]
    assert [now.done for now in told[4:]] == [1, 2, 3, 4]


def test_epochs_of_several_processes(tmp_path, always, monkeypatch):
    forks()
    monkeypatch.setattr(processes, "START", "forkserver")
    monkeypatch.setattr(processes, "POLL", 0.01)
    told = []
    study = tiny(grid={}, seeds=2, training={"epochs": 90})
    with Store.create(tmp_path, study) as store:
        execute(store, workers=2, watch=told.append)
    seen = {pair for now in told for pair in now.epochs}
    assert {total for _, total in seen} == {90}
    assert len(seen) > 3  # how many depends on the machine
    assert (told[-1].done, told[-1].epochs, told[-1].seconds_left) == (2, (), 0.0)


def test_each_process_has_its_own_place(tmp_path):
    with study_of(tmp_path, 3) as store:
        pool = processes.Pool(store, print, "cpu", 3)
        for index, epochs in enumerate([(3, 60), (0, 0), (17, 40)]):
            processes._note_epoch(pool._epochs, index, *epochs)
            pool.processes[index] = None
        assert pool.epochs() == [(3, 60), (17, 40)]  # the second is at a task
        del pool.processes[0]  # through
        assert pool.epochs() == [(17, 40)]


def test_several_processes_with_nothing_to_do(tmp_path):
    with study_of(tmp_path, 1) as store:
        end(store, store.claim(new_worker()), 1.0)
        assert execute(store, workers=2).done == 1


def test_a_task_has_no_epochs(tmp_path):
    told = []
    with study_of(tmp_path, 1) as store:
        teller = ProgressReporter(store, told.append)
        store.claim(new_worker())
        teller.epoch(0, 0)
    [now] = told
    assert (now.running, now.epochs) == (1, ())


def test_words_are_few(tmp_path, clock):
    told = []
    with study_of(tmp_path, 1) as store:
        teller = ProgressReporter(store, told.append)
        store.claim(new_worker())
        for epoch in range(101):
            teller.epoch(epoch, 100)
            clock.now += 0.0625
    # One at the start, then one in every four epochs: 0.25 s.
    assert [now.epochs[0][0] for now in told] == list(range(0, 101, 4))


def test_time_left_goes_down_within_a_run(tmp_path, clock):
    told = []
    with study_of(tmp_path, 3) as store:
        worker, teller = new_worker(), ProgressReporter(store, told.append)
        [claim] = take(store, worker, 1)
        clock.now += 100
        end(store, claim, 100.0)
        take(store, worker, 1)
        for epoch in range(3):
            teller.epoch(epoch, 60)
            clock.now += 5
    assert [now.seconds_left for now in told] == pytest.approx([200, 195, 190])


def test_looks_at_all_runs_are_fewer(tmp_path, clock, monkeypatch):
    looks = []
    with study_of(tmp_path, 2) as store:
        real = store.rows

        def slow(table):
            looks.append(clock.now)
            clock.now += 0.5
            return real(table)

        monkeypatch.setattr(store, "rows", slow)
        teller = ProgressReporter(store, lambda now: None)
        for _ in range(600):
            teller.now()
            clock.now += 0.125
    spans = [b - a for a, b in itertools.pairwise(looks)]
    assert spans == [25.5] * len(spans)  # 50 times what a look takes, and the look
    assert len(spans) == 2


def test_a_watcher_that_breaks_does_not_fail_the_run(tmp_path, always):
    def broken(now):
        if now.epochs and now.epochs[0][0] == 2:
            raise RuntimeError("the screen is gone")

    with study_of(tmp_path, 2) as store:
        with pytest.raises(RuntimeError, match="the screen is gone"):
            execute(store, watch=broken)
        counts = store.counts()
    assert (counts.done, counts.failed, counts.running) == (1, 0, 0)


# -- the bar ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "text"),
    [
        (StudyStatus(pending=12), ""),
        (StudyStatus(pending=11, running=1), "run 1 of 12"),
        (
            StudyStatus(pending=9, running=1, done=2, epochs=((17, 60),)),
            "run 3 of 12, epoch 17 of 60",
        ),
        (
            StudyStatus(running=1, done=1, failed=1, epochs=((0, 9),), seconds_left=7.2),
            "run 3 of 3, epoch 0 of 9, 1 failed, 7 s left",
        ),
        (StudyStatus(running=64, epochs=((17, 60),), oldest=99.0), "64 running, epoch 17 of 60"),
        (
            StudyStatus(running=3, epochs=((17, 60), (3, 40), (9, 60)), seconds_left=9000.0),
            "3 running, epochs 3 to 17 of 60, 2.5 h left",
        ),
        (StudyStatus(running=8, oldest=300.0), "8 running, the oldest for 5 min"),
        (StudyStatus(running=1, done=4, oldest=300.0), "run 5 of 5, for 5 min"),
        (StudyStatus(running=1, oldest=3.0), "run 1 of 1"),
        (StudyStatus(done=5, seconds_left=0.0), ""),
    ],
)
def test_what_the_bar_says(now, text, monkeypatch):
    screen = io.StringIO()
    recorded = Console(file=screen, force_terminal=True, width=160, color_system=None)
    monkeypatch.setattr(console, "err", lambda: recorded)
    with progress.runs_progress() as watch:
        watch(now)
    moves = r"\x1b\[[0-9;?]*[A-Za-z]"  # of the cursor
    plain = re.sub(moves, "\n", screen.getvalue())
    *_, line = (line for line in plain.splitlines() if line.strip())
    found = re.fullmatch(r"runs\s+\S*\s*?(\d+)/(\d+)\s+0:00:0\d ?(.*?)\s*", line)
    assert found is not None, line
    assert found.groups() == (str(now.done + now.failed), str(now.total), text)


def test_no_bar_where_nobody_looks(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(console, "err", lambda: Console(file=screen, width=160))
    with progress.runs_progress() as watch:
        watch(StudyStatus(running=1, epochs=((17, 60),)))
    assert screen.getvalue() == ""
