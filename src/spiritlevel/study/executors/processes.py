"""Executes runs in several processes of this machine, and replaces workers that die."""

from __future__ import annotations

import contextlib
import functools
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

import torch

from ...engine.memory import share_gpu
from ...errors import SpiritlevelError
from ..runs.machine import TF32
from ..runs.training_snapshots import OnEpoch
from ..storage.store import Store
from .progress import ProgressReporter, Watch

MAX_DEATHS = 3  # of workers on the same run, after which it counts as failed
START = "spawn"  # a fork would copy threads and locks of torch in whatever state they are
POLL = 0.1  # seconds between checks of the workers
GRACE = 10.0  # seconds for a worker to stop by itself
REFUSED = 3  # exit code of a worker that cannot use the store, e.g. for a full disk
Worker = Callable[..., None]  # (store, device=, on_epoch=): what one process does to the end


def run_processes(
    store: Store,
    worker: Worker,
    *,
    workers: int,
    device: str = "cpu",
    watch: Watch | None = None,
    advice: str = "",
) -> None:
    """Run `worker` in several processes until no run is pending. Ctrl-C returns their runs.

    `advice` is added to the error of runs on which workers died.
    """
    count = min(workers, store.counts().remaining)
    pool, reporter = Pool(store, worker, device, count, advice), ProgressReporter(store, watch)
    try:
        with _one_thread_each():
            for index in range(count):
                pool.start(index)
            while pool.processes:
                time.sleep(POLL)
                reporter.sometimes(pool.epochs())
                pool.look_after()
        reporter.now()
    finally:
        pool.stop()
        with contextlib.suppress(SpiritlevelError):
            store.release_lost()


class Pool:
    """The worker processes of one study."""

    def __init__(
        self, store: Store, worker: Worker, device: str, count: int, advice: str = ""
    ) -> None:
        self.store = store
        self.advice = advice
        self.worker = worker
        self.device = device
        self._count = count
        self.processes: dict[int, BaseProcess] = {}
        # Any: the types of multiprocessing do not say that every context has processes.
        self._context: Any = multiprocessing.get_context(START)
        # Epochs done and maximal, a pair per worker, in shared memory so that nobody waits.
        self._epochs: Any = self._context.RawArray("i", 2 * count)
        # Why workers stopped: a full disk stops all of them, but is reported once.
        self._reasons: Any = self._context.SimpleQueue()
        self._deaths_before = store.deaths()
        self._attempts = store.attempts()
        self._idle_deaths = 0

    def start(self, index: int) -> None:
        """Start a worker process."""
        device = device_of(index, self.device)
        note = functools.partial(_note_epoch, self._epochs, index)
        note(0, 0)  # clear what an earlier worker left
        setting = (TF32.of_this_process(), workers_per_gpu(self._count, self.device))
        arguments = (str(self.store.folder), self.worker, device, *setting, note)
        process: BaseProcess = self._context.Process(
            target=_work, args=(*arguments, self._reasons), daemon=True
        )
        with _deaf_to_ctrl_c():
            process.start()
        self.processes[index] = process

    def epochs(self) -> list[tuple[int, int]]:
        """Epochs done and maximal, of each worker whose run counts epochs."""
        pairs = [(self._epochs[2 * index], self._epochs[2 * index + 1]) for index in self.processes]
        return [pair for pair in pairs if pair[1]]

    def look_after(self) -> None:
        """Remove workers that have finished, and replace those that died."""
        for index, process in list(self.processes.items()):
            if process.exitcode is None:
                continue
            del self.processes[index]
            if process.exitcode:
                self._handle_death(process)
                if self.store.counts().remaining:
                    self.start(index)

    def _handle_death(self, process: BaseProcess) -> None:
        """Release the run of a dead worker, or fail it if it keeps killing workers."""
        where = f"the study in {str(self.store.folder)!r}"
        # A user's network may end its process with the same code; then there is no reason.
        if process.exitcode == REFUSED and not self._reasons.empty():
            raise SpiritlevelError(self._reasons.get())
        self.store.fail_deadly(
            lambda id_: self._deaths_before.get(id_, 0) + MAX_DEATHS - 1,
            f"The worker process died {MAX_DEATHS} times on this run, last with exit code "
            f"{process.exitcode}. Was there enough memory?{self.advice}",
        )
        before, self._attempts = self._attempts, self.store.attempts()
        self._idle_deaths = self._idle_deaths + 1 if self._attempts == before else 0
        if self._idle_deaths >= MAX_DEATHS:
            raise SpiritlevelError(
                f"The workers of {where} die before they take a run, last with exit code "
                f"{process.exitcode}. Run it with --workers 1 to see why."
            )

    def stop(self) -> None:
        """Ask the workers to return their runs; kill those that do not react."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.join(GRACE)
            if process.exitcode is None:
                process.kill()
                process.join()


def _work(
    folder: str,
    worker: Worker,
    device: str,
    tf32: TF32,
    sharing: int,
    on_epoch: OnEpoch,
    reasons: Any,
) -> None:
    """The main function of a worker process."""
    tf32.use()
    share_gpu(sharing)
    signal.signal(signal.SIGTERM, _interrupt)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        with Store.open(folder) as store:
            worker(store, device=device, on_epoch=on_epoch)
    except KeyboardInterrupt:
        pass  # the run was returned; the parent reports it
    except SpiritlevelError as error:
        reasons.put(str(error))
        sys.exit(REFUSED)


def _note_epoch(epochs: Any, index: int, done: int, total: int) -> None:
    epochs[2 * index], epochs[2 * index + 1] = done, total


def _end_with_parent() -> None:
    """Stop when the parent ends: a killed parent cannot tell its children."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Let children ignore Ctrl-C, which a terminal sends to all; the parent stops them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    # a scheduler may tell all processes, and then the parent tells its children once more
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


@contextlib.contextmanager
def _one_thread_each() -> Iterator[None]:
    """Limit each child to one thread; otherwise each would use all cores."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def device_of(index: int, device: str) -> str:
    """Distribute workers over the GPUs; several may share one."""
    if device != "cuda":
        return device
    return f"cuda:{index % max(1, torch.cuda.device_count())}"


def workers_per_gpu(workers: int, device: str) -> int:
    """How many of the workers use one GPU; those of "cuda:1" are all on that one."""
    gpus = max(1, torch.cuda.device_count()) if device == "cuda" else 1
    return math.ceil(workers / gpus)
