"""Training steps of studies as CUDA graphs, against the same steps asked for kernel by kernel.

Of one network, and of many that train together. And several worker processes on one GPU against
one: small networks leave it waiting.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable

import torch
from harness import Ratio, compare
from torch import Tensor

from spiritlevel.study import Store, Study, execute
from spiritlevel.study.runs.machine import repeatable
from spiritlevel.study.runs.networks import NetworkRun, build_model
from spiritlevel.study.runs.run_data import RunData
from spiritlevel.study.runs.stacked import GroupMember, _Stack
from spiritlevel.study.runs.steps import Steps
from spiritlevel.study.settings.run import RunSettings

LENET = {"name": "lenet5", "channels": 3, "size": 32}
NETWORKS = {
    "LeNet-5": LENET,
    "ResNet-18 width 16": {"name": "resnet18", "width": 16},
    "ResNet-18": {"name": "resnet18"},
}
BATCHES, STEPS = (64, 128), 30
MEMBERS = 33  # so many of `002-fig-5 --preset h200` share batch size and optimizer
RUNS, WORKERS = 12, 6


def run(device: torch.device, repeats: int) -> list[Ratio]:
    """Nothing without a GPU: a CPU has no graphs."""
    if device.type != "cuda":
        return []
    rows = [
        steps(name, model, batch, device, repeats)
        for name, model in NETWORKS.items()
        for batch in BATCHES
    ]
    rows += [together(batch, device, repeats) for batch in BATCHES]
    return [*rows, workers(device)]


def steps(name: str, model: dict, batch: int, device: torch.device, repeats: int) -> Ratio:
    training = {"batch_size": batch, "lr": 1e-3, "momentum": 0.9}
    (settings,) = Study(name="steps", model=model, training=training, seeds=1).runs()
    x = torch.rand(batch, 3, 32, 32, device=device)
    y = torch.randint(10, (batch,), device=device)
    with repeatable(settings.training.threads):
        recorded, asked = (made(settings, x, y) for _ in range(2))
        asked._gradients = asked._gradients._captured  # as where nothing can be recorded
        row = compare(
            f"{name}, batch {batch}: a step kernel by kernel over one recorded",
            lambda: several(asked, x, y),
            lambda: several(recorded, x, y),
            device=device,
            repeats=repeats,
            steps=STEPS,
        )
    print(row)
    return row


def made(settings: RunSettings, x: Tensor, y: Tensor) -> Steps:
    data = RunData(x, y, x, y, num_classes=10)
    run = NetworkRun(settings, data, build_model(settings, x.device), initial={})
    training = Steps(run, steps_an_epoch=STEPS)
    training.start_epoch()
    return training


def several(step: Callable[..., object], *inputs: Tensor) -> None:
    for _ in range(STEPS):
        step(*inputs)


def together(batch: int, device: torch.device, repeats: int) -> Ratio:
    """A step of all members at once, each with its own batch."""
    training = {"batch_size": batch, "lr": 1e-3, "momentum": 0.9}
    runs = Study(name="together", model=LENET, training=training, seeds=MEMBERS).runs()
    x = torch.rand(MEMBERS * batch, 3, 32, 32, device=device)
    y = torch.randint(10, (MEMBERS * batch,), device=device)
    numbers = torch.arange(MEMBERS * batch, device=device).view(MEMBERS, batch)
    with repeatable(runs[0].training.threads):
        recorded, asked = (stacked(runs, x, y) for _ in range(2))
        asked.step = asked.step._captured  # as where nothing can be recorded
        row = compare(
            f"{MEMBERS} LeNet-5 together, batch {batch}: kernel by kernel over recorded",
            lambda: several(asked.step, numbers),
            lambda: several(recorded.step, numbers),
            device=device,
            repeats=repeats,
            steps=STEPS,
            members=MEMBERS,
        )
    print(row)
    return row


def stacked(runs: list[RunSettings], x: Tensor, y: Tensor) -> _Stack:
    members = []
    data = RunData(x, y, x, y, num_classes=10)
    for run in runs:
        model = build_model(run, x.device)
        members.append(GroupMember(run, data, model, {}, generator=torch.Generator()))
    return _Stack(members, x)


def workers(device: torch.device) -> Ratio:
    """A study, start of the processes included, by one worker and by several."""
    study = Study(
        name="workers",
        model={"name": "digits_cnn", "width": 16},
        training={"epochs": 20, "lr": 0.05},
        seeds=RUNS,
        measures=["curvature.lambda_max", "relative.kappa", "pac_bayes.sigma"],
    )
    times = []
    for count in (1, WORKERS):
        with tempfile.TemporaryDirectory() as folder, Store.create(folder, study) as store:
            start = time.perf_counter()
            execute(store, workers=count, device=str(device))
            times.append(time.perf_counter() - start)
    alone, shared = times
    row = Ratio(
        name=f"{RUNS} networks on digits, one worker over {WORKERS} on one GPU",
        ratio=alone / shared,
        low=alone / shared,
        high=alone / shared,
        goal=None,
        at_least=True,
        work_seconds=alone,
        floor_seconds=shared,
        repeats=1,
        details={"runs": RUNS, "workers": WORKERS},
    )
    print(row)
    return row
