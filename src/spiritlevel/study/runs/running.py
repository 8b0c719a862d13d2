"""One run from its settings to its result: the same bits each time on one machine."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...analysis.landscape.fingerprints import of_tensors
from ..models.registry import is_own
from ..settings.run import RunSettings
from .ending import Ending, finite
from .epochs import Epochs
from .measuring import complete, machine, measure_epoch
from .network_run import NetworkRun
from .results import EpochRow, RunResult
from .run_data import RunData, derived_seed
from .tasks import run_task
from .tf32 import TF32
from .training_snapshots import Snapshot, SnapshotFile

EVALUATED = 1024  # samples at a time
ALONE = ".alone"  # in the names of their files: a group's bears the name of its first run
OnEpoch = Callable[[int, int], None]  # epochs done, epochs at most


def run_one(
    settings: RunSettings,
    *,
    device: str | torch.device = "cpu",
    on_epoch: OnEpoch | None = None,
    unfinished: pathlib.Path | None = None,
) -> RunResult:
    """Train, follow, measure, or do the run's task. Everything depends on `settings` alone.

    Where training went well and measuring did not, the result says so in its `error`. In the folder
    `unfinished` the training is saved on the way; after an interruption it goes on from there.
    """
    start, before = time.perf_counter(), 0.0
    with repeatable(settings.training.threads), torch.random.fork_rng(devices=_cuda(device)):
        torch.manual_seed(derived_seed(settings.seed, "training"))  # of dropout and its like
        if settings.task is not None:
            result = run_task(settings, device)
        else:
            run = NetworkRun.start(settings, device)
            file = None if unfinished is None else _snapshots(run, unfinished)
            last = None if file is None else file.load()
            train(run, on_epoch=on_epoch, snapshots=file, last=last)
            before = 0.0 if last is None else last.seconds
            result = complete(run, keep=True)
    return with_seconds(result, before + time.perf_counter() - start)


def remove_snapshots_of(run: str, unfinished: pathlib.Path) -> None:
    """What was saved of a run that trained alone, by its id: it has ended."""
    SnapshotFile(unfinished, f"{run}{ALONE}", []).remove()


def _snapshots(run: NetworkRun, unfinished: pathlib.Path) -> SnapshotFile | None:
    """Where the training of a run is saved; None for a user's network.

    Such a network may keep what is neither weight nor buffer, a counter in Python, and would go on
    without it. Digits depend on the machine, and a start on a file: what was saved goes on only
    where both are the same.
    """
    settings = run.settings
    if not is_own(settings.model.name):
        return None
    facts = json.loads(machine(run.data.x.device, settings.training.threads))
    facts.pop("host")
    trained = [settings.id, json.dumps(facts, sort_keys=True), of_tensors(run.initial)]
    return SnapshotFile(unfinished, f"{settings.id}{ALONE}", trained)


@contextlib.contextmanager
def repeatable(threads: int) -> Iterator[None]:
    """Sums in the same order each time; the settings of torch are restored afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.backends.cudnn.flags(
            enabled=True,
            deterministic=True,
            benchmark=False,
            allow_tf32=TF32.of_this_process().convolutions,
        ):
            yield
    finally:
        torch.set_num_threads(before)


def with_seconds(result: RunResult, seconds: float) -> RunResult:
    """The result with the time it took, known only at the end."""
    return dataclasses.replace(result, seconds=seconds)


def train(
    run: NetworkRun,
    *,
    on_epoch: OnEpoch | None = None,
    snapshots: SnapshotFile | None = None,
    last: Snapshot | None = None,
) -> None:
    """Train until a stop rule or the last epoch, and measure on the way where the study says so.

    What was seen goes into the run's history. Training starts at the `last` snapshot, if there is
    one, and saves others.
    """
    start, settings, epochs = time.perf_counter(), run.settings, Epochs(run)
    most, epoch, before = settings.training.epochs, 0, 0.0
    ending = Ending(settings.stop, most)
    if last is not None:
        epoch, before, [run.history] = last.epoch, last.seconds, last.histories
        ending.replay(run.history, settings)
        epochs.restore(last.state)
    history = run.history
    while not history.outcome:
        epoch += 1
        epochs.step.start_epoch()
        for x, y in epochs.batches():
            epochs.step(x, y)
        steps = epochs.step.end_epoch()
        if settings.evaluated_at(epoch) or ending.reached_by(steps) or not _is_finite(run.model):
            row = _evaluated(run.model, run.data, epoch)
            measured = measure_epoch(run, row)
            history.add(row, measured)
            history.outcome = ending.after(row, measured, steps)
        if on_epoch is not None:
            on_epoch(epoch, most)
        if snapshots is not None and snapshots.due:
            seconds = before + time.perf_counter() - start
            snapshots.save(Snapshot(epoch, [history], seconds, epochs.state()))


def _is_finite(model: nn.Module) -> bool:
    return bool(finite(param[None] for param in model.parameters())[0])


def _evaluated(model: nn.Module, data: RunData, epoch: int) -> EpochRow:
    validation = (None, None) if data.validation is None else evaluate(model, *data.validation)
    return EpochRow(
        epoch,
        *evaluate(model, data.x, data.y),
        *evaluate(model, data.test_x, data.test_y),
        *validation,
    )


@torch.no_grad()
def evaluate(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Mean loss and accuracy, in eval mode."""
    model.eval()
    loss = torch.zeros((), dtype=torch.float64, device=x.device)
    correct = torch.zeros((), dtype=torch.int64, device=x.device)
    for part, targets in zip(x.split(EVALUATED), y.split(EVALUATED), strict=True):
        outputs = model(part)
        loss += F.cross_entropy(outputs, targets, reduction="none").double().sum()
        correct += (outputs.argmax(dim=1) == targets).sum()
    return float(loss) / len(x), float(correct) / len(x)


def _cuda(device: str | torch.device) -> list[torch.device]:
    place = torch.device(device)
    return [place] if place.type == "cuda" else []
