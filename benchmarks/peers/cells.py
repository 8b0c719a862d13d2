"""One cell of the table: a library's answer to a question, what it took, how far it is off.

Seconds are those of a whole call on a copy of the network that the library has not seen before: on
a GPU the median of the calls by the clock, on a CPU the least of them by the processor's time,
which other work on the machine changes little. A call on another copy has been made before, since
the first one in a process loads kernels. The error is the root mean square over the seeds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import math
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping

import harness
import torch
from subjects import Made, Z, error
from tools import DENSITY, LARGEST, TOLERANCES, Answer, Library, Network, Way, read
from torch import Tensor

SEEDS = 5
ENOUGH = 2  # calls on a GPU, where the answers are exact
EXACT = 1e-4  # relative error up to which float32 alone is at work
SHORT = 5.0  # seconds; a longer call is its own warm-up


@dataclasses.dataclass
class Cell:
    """`state`: "answered", "does not offer", "too long", "not reached" or "failed"."""

    network: str
    question: str
    library: str
    way: str = ""
    state: str = "answered"
    seconds: float | None = None
    first_seconds: float | None = None  # of the call before, which may load kernels
    peak_bytes: int | None = None  # with the network, without the data
    error: float | None = None  # relative, root mean square over the seeds
    seeds: int = 0
    products: int | None = None  # that it was given
    value: float | None = None
    note: str = ""


class TooLong(Exception):
    """A call took longer than it was given."""


@dataclasses.dataclass
class Run:
    """Several calls of one way with the same number of products."""

    times: list[float]
    values: list[float | None]
    errors: list[float]
    peak_bytes: int | None
    took: Callable[[list[float]], float]  # of all calls
    first: float | None = None
    diagonal: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)

    @property
    def error(self) -> float | None:
        squares = [e**2 for e in self.errors]
        return math.sqrt(statistics.fmean(squares)) if squares else None

    def fill(self, cell: Cell, products: int | None) -> None:
        cell.seconds, cell.peak_bytes = self.took(self.times), self.peak_bytes
        cell.error, cell.seeds, cell.products = self.error, len(self.times), products
        cell.value, cell.first_seconds = self.values[0], self.first


class Examiner:
    """Asks libraries about one network."""

    def __init__(self, name: str, made: Made, limit: float) -> None:
        self.name, self.made, self.limit = name, made, limit
        self._ladders: dict[tuple[str, str, str], list[tuple[int, Run]]] = {}
        self._whole: dict[tuple[str, str], Run | Exception] = {}

    def prepare(self, question: str) -> None:
        """What answers are compared with, and how many products random signs take."""
        if question != DENSITY:
            self.made.truth(question)
        if question in TOLERANCES and question != LARGEST:
            self.made.products(question, TOLERANCES[question])

    def ask(self, library: type[Library], question: str) -> Iterator[Cell]:
        """One cell for each way of the library, or one that says that it has none."""
        try:
            ways = self._fresh(library).ways(question)
        except ImportError as missing:
            yield Cell(self.name, question, library.name, state="failed", note=str(missing))
            return
        if not ways:
            yield Cell(self.name, question, library.name, state="does not offer")
        for position, way in enumerate(ways):
            cell = Cell(self.name, question, library.name, way.name)
            try:
                self._fill(cell, library, question, position, way)
            except torch.OutOfMemoryError:
                cell.state, cell.note = "failed", "out of memory"
            except TooLong:
                cell.state, cell.note = "too long", f"a call takes more than {self.limit:.0f} s"
            except Exception as raised:  # whatever a library raises is its answer
                cell.state, cell.note = "failed", told(raised)
            yield cell
            gc.collect()
            if self.made.device.type == "cuda":
                torch.cuda.empty_cache()

    def _fill(
        self, cell: Cell, library: type[Library], question: str, position: int, way: Way
    ) -> None:
        if way.products == "formula":
            products = self.made.products(question, TOLERANCES[question])
            self._formula(cell, library, question, position, products)
        elif way.products == "ladder":
            self._ladder(cell, library, question, position, way)
        elif way.has_all:
            self._read(cell, library, question, position, way)
        else:
            products = way.steps[0] if way.products == "fixed" else 0
            self._run(library, question, position, products, 0).fill(cell, products or None)

    def _read(
        self, cell: Cell, library: type[Library], question: str, position: int, way: Way
    ) -> None:
        """From one diagonal, whose time is that of each answer in it."""
        key = (library.name, way.name)
        if key not in self._whole:
            try:
                self._whole[key] = self._run(library, question, position, 0, 0)
            except Exception as raised:
                self._whole[key] = raised.with_traceback(None)
        run = self._whole[key]
        if isinstance(run, Exception):
            raise run
        answer, truth = read(question, run.diagonal), self.made.truth(question)
        assert truth is not None
        run.values = [answer if isinstance(answer, float) else None]
        run.errors = [error(answer, truth)]
        run.fill(cell, None)

    def _formula(
        self, cell: Cell, library: type[Library], question: str, position: int, products: int
    ) -> None:
        few = min(products, 3)
        trial = self._run(library, question, position, few, 0, seeds=1)
        expected = trial.times[0] / few * products
        if expected > self.limit:
            cell.state, cell.products = "too long", products
            cell.seconds = expected
            cell.note = "from the time of 3 products"
            return
        self._run(library, question, position, products, 0, warm=False).fill(cell, products)

    def _ladder(
        self, cell: Cell, library: type[Library], question: str, position: int, way: Way
    ) -> None:
        """The fewest products with which the answers to all seeds are close enough."""
        kind = "trace" if question.startswith("trace to") else question
        steps = self._ladders.setdefault((library.name, kind, way.name), [])
        scale = 1.0 if question == LARGEST else Z  # Lanczos errs to one side, and is no average
        for place, products in enumerate(way.steps):
            if place == len(steps):
                last = steps[-1][1].times if steps else []
                if last and 2 * (SEEDS + 1) * statistics.median(last) > 2 * self.limit:
                    cell.state, cell.note = "too long", f"{products} products were not tried"
                    return
                try:
                    steps.append((products, self._run(library, question, position, products, 0)))
                except (TooLong, torch.OutOfMemoryError) as ended:
                    if not steps:
                        raise
                    is_long = isinstance(ended, TooLong)
                    cell.state = "too long" if is_long else "not reached"
                    why = (
                        f"take more than {self.limit:.0f} s"
                        if is_long
                        else "do not fit into memory"
                    )
                    cell.note = f"{products} products {why}"
                    return
            products, run = steps[place]
            run.fill(cell, products)
            if scale * (run.error or 0.0) <= TOLERANCES[question]:
                return
        cell.state = "not reached"

    def _run(
        self,
        library: type[Library],
        question: str,
        position: int,
        products: int,
        first_seed: int,
        seeds: int = SEEDS,
        warm: bool = True,
    ) -> Run:
        """Calls on fresh copies with several seeds, as many as fit into the limit."""
        truth = self.made.truth(question) if question != DENSITY else None
        is_gpu = self.made.device.type == "cuda"
        run = Run([], [], [], None, statistics.median if is_gpu else min)

        def once(seed: int, keep: bool) -> float:
            gc.collect()  # what a failed call has left
            base = torch.cuda.memory_allocated(self.made.device) if is_gpu else 0
            fresh = self._fresh(library)
            asked = fresh.ways(question)[position]
            answers: list[Answer] = []
            if is_gpu:
                torch.cuda.reset_peak_memory_stats(self.made.device)
            with within(self.limit, is_gpu):
                took = seconds(lambda: answers.append(asked.call(seed, products)), self.made.device)
            if keep:
                run.times.append(took)
                (answer,) = answers
                run.values.append(answer if isinstance(answer, float) else None)
                if is_gpu:
                    run.peak_bytes = torch.cuda.max_memory_allocated(self.made.device) - base
                if asked.has_all:
                    run.diagonal = {name: part.detach().cpu() for name, part in answer.items()}
                elif truth is not None:
                    run.errors.append(error(answer, truth))
            for p in fresh.model.parameters():  # a gradient with a graph would keep itself alive
                p.grad = None
            return took

        if warm:
            run.first = took = once(first_seed, keep=False)
            if took > SHORT:  # its own warm-up
                seeds = min(seeds, max(1, int(self.limit / took)))
        for seed in range(first_seed, first_seed + seeds):
            once(seed, keep=True)
            is_exact = max(run.errors, default=0.0) < EXACT and (run.errors or run.diagonal)
            if (is_gpu and is_exact and len(run.times) == ENOUGH) or sum(run.times) > self.limit:
                break
        return run

    def _fresh(self, library: type[Library]) -> Library:
        made = self.made
        network = Network(made.fresh(), made.data, made.subject.is_piecewise_linear, made.part)
        return library(network)


def seconds(call: Callable[[], object], device: torch.device) -> float:
    if device.type != "cpu":
        return harness.seconds(call, device)
    start = time.process_time()
    call()
    return time.process_time() - start


@contextlib.contextmanager
def within(limit: float, by_clock: bool) -> Iterator[None]:
    """Raise TooLong in the block after twice the seconds, as soon as Python runs again."""

    def stop(number: int, frame: object) -> None:
        raise TooLong

    kind, timer = signal.SIGALRM, signal.ITIMER_REAL
    if not by_clock:
        kind, timer = signal.SIGPROF, signal.ITIMER_PROF
    before = signal.signal(kind, stop)
    signal.setitimer(timer, 2 * limit)
    try:
        yield
    finally:
        signal.setitimer(timer, 0.0)
        signal.signal(kind, before)


def told(raised: Exception) -> str:
    text = str(raised).strip().splitlines() or [""]
    return f"{type(raised).__name__}: {text[0][:120]}"
