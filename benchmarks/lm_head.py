"""The streamed head of a language model against its two matrix products alone."""

from __future__ import annotations

import resource
from collections.abc import Callable

import torch
from harness import Ratio, compare, seconds
from torch import Tensor

from spiritlevel.math.streaming import stream_tokens

GOAL = 1.25  # on a GPU; a CPU has none
SIZES = {"cuda": (8192, 4096, 128256, torch.bfloat16), "cpu": (4096, 768, 50257, torch.float32)}
BUDGET = {"cuda": 2 << 30, "cpu": 256 << 20}


def run(device: torch.device, repeats: int) -> list[Ratio]:
    num_tokens, width, num_classes, dtype = SIZES[device.type]
    generator = torch.Generator(device).manual_seed(0)
    kind = {"generator": generator, "device": device, "dtype": dtype}
    features = torch.randn(num_tokens, width, **kind)
    weight = torch.randn(num_classes, width, **kind).mul_(width**-0.5 * 4)

    def work(kappa: bool) -> Callable[[], object]:
        return lambda: stream_tokens(
            features, weight, None, kappa=kappa, budget=BUDGET[device.type]
        )

    seconds(work(True), device)  # compiled, so that only the sweep is in the peak
    peak = extra_bytes(work(True), device)
    details = {
        "num_tokens": num_tokens,
        "width": width,
        "num_classes": num_classes,
        "dtype": str(dtype),
        "budget_bytes": BUDGET[device.type],
    }
    goal = GOAL if device.type == "cuda" else None
    chunk = fastest_chunk(features, weight, device)
    rows = [
        compare(
            "trace and κ of the head per two matrix products",
            work(True),
            lambda: products(features, weight, chunk),
            device=device,
            repeats=repeats,
            goal=goal,
            peak_extra_bytes=peak,
            floor_chunk=chunk,
            **details,
        ),
        compare(
            "trace of the head per one matrix product",
            work(False),
            lambda: logits(features, weight, chunk),
            device=device,
            repeats=repeats,
            floor_chunk=chunk,
            **details,
        ),
    ]
    for row in rows:
        print(row)
    print(f"peak extra memory {peak / 2**20:.0f} MiB, budget {BUDGET[device.type] / 2**20:.0f} MiB")
    return rows


def extra_bytes(work: Callable[[], object], device: torch.device) -> int:
    """The largest memory during one call, above what was there before it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak starts anew from what is resident now
    with open("/proc/self/statm") as file:
        before = int(file.read().split()[1]) * resource.getpagesize()
    work()
    with open("/proc/self/status") as file:
        peak = next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM"))
    return peak - before


def fastest_chunk(features: Tensor, weight: Tensor, device: torch.device) -> int:
    """How many classes at a time the bare products take where that is fastest for them."""
    times = {}
    for chunk in (8192, 16384, 32768, len(weight)):
        products(features, weight, chunk)
        times[chunk] = min(
            seconds(lambda c=chunk: products(features, weight, c), device) for _ in range(3)
        )
    return min(times, key=times.__getitem__)


@torch.no_grad()
def products(features: Tensor, weight: Tensor, chunk: int) -> None:
    """Logits and sums in the weights' own type, which is what is fastest; added up in place."""
    total = torch.zeros_like(features)
    for rows in weight.split(chunk):
        total.addmm_(features @ rows.T, rows)


@torch.no_grad()
def logits(features: Tensor, weight: Tensor, chunk: int) -> None:
    for rows in weight.split(chunk):
        features @ rows.T
