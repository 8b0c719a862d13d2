"""Run in three processes by test_failing_processes.py: process 1 does something else each time.

failing_worker.py OUT      writes what each process saw, by case, to OUT.RANK
"""

import contextlib
import datetime
import json
import os
import pathlib
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

import spiritlevel as sl

ODD = 1  # the rank of the process that differs
MEASURES = ["curvature.lambda_max", "head.trace", "relative.kappa"]
ROUGHLY = {"rtol": 0.5, "max_passes": 40}  # few probes: whether processes agree shows in each


def is_odd() -> bool:
    return dist.is_initialized() and dist.get_rank() == ODD


class Network(nn.Module):
    """Two layers and BatchNorm; raises from one of its calls on."""

    def __init__(self, fails_at: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Tanh(), nn.Linear(3, 3))
        self.fails_at, self.calls = fails_at, 0
        self.double().eval()

    def forward(self, x):
        self.calls += 1
        if self.fails_at is not None and self.calls >= self.fails_at:
            raise RuntimeError("planted in forward")
        return self.layers(x)


def batches(rank: int, size: int = 4) -> list:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(21, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(3, (21,), generator=generator)
    part = slice(7 * rank, 7 * rank + 7)
    return list(zip(x[part].split(size), y[part].split(size), strict=True))


def interrupt(*_) -> None:
    os.kill(os.getpid(), signal.SIGINT)


class Broken:
    """Data that cannot be read from its second pass on."""

    def __init__(self, data: list) -> None:
        self.data, self.passes = data, 0

    def __iter__(self):
        self.passes += 1
        if self.passes > 1:
            raise OSError("planted in the data")
        return iter(self.data)


class Shrinking(Broken):
    """Data that has lost its last batch from the fourth pass on."""

    def __iter__(self):
        self.passes += 1
        return iter(self.data[: len(self.data) - (self.passes > 3)])


def measure(model=None, data=None, verb=sl.measure, **arguments):
    if verb is sl.measure:
        arguments = {"measures": MEASURES, **ROUGHLY} | arguments
    return verb(model or Network(), data or batches(dist.get_rank()), **arguments)


def changed(**others):
    """Arguments that only the odd process passes."""
    return others if is_odd() else {}


def altered(change):
    model = Network()
    if is_odd():
        change(model)
    return model


def touch(model):
    def progress(*_):
        if is_odd():
            model.layers[0].weight.data.add_(1.0)

    return progress


def of_verb(verb, **arguments):
    return lambda: measure(Network(12 if is_odd() else None), verb=verb, **arguments)


def with_touched_weights():
    model = Network()
    return measure(model, progress=touch(model))


def with_monitor():
    """A row that fails in all processes, and one that is measured after that."""
    model = Network()
    monitor = sl.FlatnessMonitor(
        model, batches(dist.get_rank()), measures=MEASURES, every=1, **ROUGHLY
    )
    model.fails_at = model.calls + 3 if is_odd() else None
    failed = monitor.step()
    model.fails_at = None
    return {"failed": failed["text"], "status": monitor.step()["status"]}


def with_ddp():
    """Running statistics differ between processes after every training step under DDP."""
    model = altered(lambda m: m.layers[1].running_mean.add_(1.0))
    before = model.layers[1].running_mean.clone()
    wrapped = nn.parallel.DistributedDataParallel(model, init_sync=False)
    value = measure(wrapped)["head.trace"].value
    assert torch.equal(model.layers[1].running_mean, before)
    return {"head.trace": value}


CASES = {
    "a bad argument": lambda: measure(**changed(memory=-1)),
    "no data to read": lambda: measure(data=Broken(batches(dist.get_rank())) if is_odd() else None),
    "Ctrl-C": lambda: measure(progress=interrupt if is_odd() else None),
    "other weights": lambda: measure(altered(lambda m: m.layers[0].weight.data.mul_(3.0))),
    "other buffers": lambda: measure(altered(lambda m: m.layers[1].running_mean.add_(1.0))),
    "other measures": lambda: measure(**changed(measures="head.trace")),
    "other options": lambda: measure(options={"rho": 0.2 if is_odd() else 0.1}),
    "another seed": lambda: measure(**changed(seed=3)),
    "another function": lambda: measure(**changed(verb=sl.eigenvalues)),
    "other samples": lambda: measure(
        data=Shrinking(batches(dist.get_rank(), 2)) if is_odd() else None
    ),
    "weights that change": with_touched_weights,
    "eigenvalues": of_verb(sl.eigenvalues, num=3),
    "density": of_verb(sl.density, num_vectors=2, steps=10),
    "landscape": of_verb(sl.landscape, points=25),
    "audit": of_verb(sl.audit, measures="head.trace"),
} | {f"call {n}": lambda n=n: measure(Network(n if is_odd() else None)) for n in (1, 4, 10, 25)}
FINE = {
    "memory and progress": lambda: measure(**changed(memory=10_000, progress=lambda *_: None)),
    "buffers of DDP": with_ddp,
    "monitor": with_monitor,
    "plain": measure,
}


def run(case) -> dict:
    start = time.monotonic()
    seen: dict = {}
    try:
        result = case()
        if isinstance(result, sl.Report):
            result = {name: m.value for name, m in result.items()}
        seen["result"] = result if isinstance(result, dict) else str(result)
    except BaseException as error:
        seen["error"], seen["type"] = str(error), type(error).__name__
    return seen | {"seconds": time.monotonic() - start}


def main(out: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=100))
    seen = {}
    for name, case in CASES.items():
        seen[name] = run(case)
        seen[name]["after"] = run(lambda: measure(measures="head.trace"))
    seen |= {name: run(case) for name, case in FINE.items()}
    pathlib.Path(f"{out}.{dist.get_rank()}").write_text(json.dumps(seen))
    with contextlib.suppress(RuntimeError):
        dist.barrier()
    os._exit(0)  # a thread of gloo's sometimes aborts a process that ends in the usual way


if __name__ == "__main__":
    main(*sys.argv[1:])
