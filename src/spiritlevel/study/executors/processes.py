"""Several processes of this machine on one store; a worker that dies is noticed and replaced."""

from __future__ import annotations

import contextlib
import functools
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

from ...errors import SpiritlevelError
from ..runs.running import OnEpoch
from ..runs.tf32 import TF32
from ..storage.store import Store
from .live import Live, Watch

MAX_DEATHS = 3  # of workers on one run, after which the run counts as failed
START = "spawn"  # a fork would copy threads and locks of torch in whatever state they are
POLL = 0.1  # seconds between looks at the workers
GRACE = 10.0  # seconds for a worker to stop by itself
REFUSED = 3  # exit code of a worker that the store refuses, a full disk for example
Worker = Callable[..., None]  # (store, device=, on_epoch=): what one process does to the end


def run_processes(
    store: Store,
    worker: Worker,
    *,
    workers: int,
    device: str = "cpu",
    watch: Watch | None = None,
) -> None:
    """`work` in several processes until no run waits. Ctrl-C gives their runs back."""
    count = min(workers, store.counts().remaining)
    pool, live = Pool(store, worker, device, count), Live(store, watch)
    try:
        with _one_thread_each():
            for index in range(count):
                pool.start(index)
            while pool.processes:
                time.sleep(POLL)
                live.sometimes(pool.epochs())
                pool.look_after()
        live.now()
    finally:
        pool.stop()
        with contextlib.suppress(SpiritlevelError):
            store.release_lost()


class Pool:
    """Worker processes by their number."""

    def __init__(self, store: Store, worker: Worker, device: str, count: int) -> None:
        self.store = store
        self.worker = worker
        self.device = device
        self.processes: dict[int, BaseProcess] = {}
        # Any: the types of multiprocessing do not say that every context has processes.
        self._context: Any = multiprocessing.get_context(START)
        # Epochs done and at most, a pair a worker: memory that all share, so that nobody waits.
        self._epochs: Any = self._context.RawArray("i", 2 * count)
        # Why workers stopped: all of them may meet a full disk, and it is said once.
        self._reasons: Any = self._context.SimpleQueue()
        self._deaths_before = store.deaths()
        self._attempts = store.attempts()
        self._idle_deaths = 0

    def start(self, index: int) -> None:
        """A new worker."""
        device = _device_of(index, self.device)
        note = functools.partial(_note_epoch, self._epochs, index)
        note(0, 0)  # what a worker before it had left there
        arguments = (str(self.store.folder), self.worker, device, TF32.of_this_process(), note)
        process: BaseProcess = self._context.Process(
            target=_work, args=(*arguments, self._reasons), daemon=True
        )
        with _deaf_to_ctrl_c():
            process.start()
        self.processes[index] = process

    def epochs(self) -> list[tuple[int, int]]:
        """Done and at most, of each worker whose run has any."""
        pairs = [(self._epochs[2 * index], self._epochs[2 * index + 1]) for index in self.processes]
        return [pair for pair in pairs if pair[1]]

    def look_after(self) -> None:
        """Let go of workers that are through, and replace those that died."""
        for index, process in list(self.processes.items()):
            if process.exitcode is None:
                continue
            del self.processes[index]
            if process.exitcode:
                self._bury(process)
                if self.store.counts().remaining:
                    self.start(index)

    def _bury(self, process: BaseProcess) -> None:
        """Free the run of a dead worker, or give it up if it keeps killing workers."""
        where = f"the study in {str(self.store.folder)!r}"
        # A network of the user may end its process with the same code, and then there is no reason.
        if process.exitcode == REFUSED and not self._reasons.empty():
            raise SpiritlevelError(self._reasons.get())
        self.store.fail_deadly(
            lambda id_: self._deaths_before.get(id_, 0) + MAX_DEATHS - 1,
            f"The worker process died {MAX_DEATHS} times on this run, last with exit code "
            f"{process.exitcode}. Was there enough memory?",
        )
        before, self._attempts = self._attempts, self.store.attempts()
        self._idle_deaths = self._idle_deaths + 1 if self._attempts == before else 0
        if self._idle_deaths >= MAX_DEATHS:
            raise SpiritlevelError(
                f"The workers of {where} die before they take a run, last with exit code "
                f"{process.exitcode}. Run it with --workers 1 to see why."
            )

    def stop(self) -> None:
        """Ask the workers to give their runs back; end those that do not listen."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.join(GRACE)
            if process.exitcode is None:
                process.kill()
                process.join()


def _work(
    folder: str, worker: Worker, device: str, tf32: TF32, on_epoch: OnEpoch, reasons: Any
) -> None:
    """What a worker process does."""
    tf32.use()
    signal.signal(signal.SIGTERM, _interrupt)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        with Store.open(folder) as store:
            worker(store, device=device, on_epoch=on_epoch)
    except KeyboardInterrupt:
        pass  # the run was given back; the parent says what is to be said
    except SpiritlevelError as error:
        reasons.put(str(error))
        sys.exit(REFUSED)


def _note_epoch(epochs: Any, index: int, done: int, total: int) -> None:
    epochs[2 * index], epochs[2 * index + 1] = done, total


def _end_with_parent() -> None:
    """A parent that was killed cannot tell its children to stop."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Children inherit it: a terminal's Ctrl-C reaches all processes, and the parent tells them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _device_of(index: int, device: str) -> str:
    """Workers take turns on the GPUs; several may share one."""
    if device != "cuda":
        return device
    return f"cuda:{index % max(1, torch.cuda.device_count())}"


@contextlib.contextmanager
def _one_thread_each() -> Iterator[None]:
    """Read by the children as they start: their libraries would each take all cores otherwise."""
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
