"""How the time of an exact trace grows with batch, width, depth and classes.

One size changes at a time, the others stay. Each time is the median of later calls on one network,
as a monitor makes them, beside one forward-backward over the same data. The exponent is the slope
of a line through the logarithms of size and time, with its standard error: 1 is linear. Small sizes
leave a GPU waiting for Python, which flattens the line; so the last two sizes are given by
themselves too.
"""

from __future__ import annotations

import math
import statistics
from typing import Any

import torch
from harness import Ratio, seconds
from networks import images, mean_loss
from scipy.stats import linregress
from torch import nn

import spiritlevel as sl

REPEATS = 3
BASE = {"batch": 64, "width": 32, "depth": 4, "classes": 10}
SIZES = {
    "cuda": {
        "batch": (32, 64, 128, 256, 512, 1024),
        "width": (32, 64, 128, 256, 512),
        "depth": (4, 8, 16, 32),
        "classes": (10, 20, 40, 80, 160),
    },
    "cpu": {
        "batch": (32, 64, 128, 256),
        "width": (16, 32, 64, 128),
        "depth": (2, 4, 8, 16),
        "classes": (5, 10, 20, 40),
    },
}


def run(device: torch.device, repeats: int) -> list[Ratio]:
    """One row a size that grows; `repeats` is not used."""
    rows = []
    for grows, sizes in SIZES[device.type].items():
        rows.append(growth(grows, sizes, device))
        print(rows[-1], rows[-1].details, flush=True)
    return rows


def growth(grows: str, sizes: tuple[int, ...], device: torch.device) -> Ratio:
    ours, floors = [], []
    for size in sizes:
        work, floor = timed(device, **{**BASE, grows: size})
        ours.append(work)
        floors.append(floor)
    slope, error = exponent(sizes, ours)
    return Ratio(
        name=f"exact trace, time as a power of {grows}",
        ratio=slope,
        low=slope - 2 * error,
        high=slope + 2 * error,
        goal=None,
        at_least=False,
        work_seconds=ours[-1],
        floor_seconds=floors[-1],
        repeats=REPEATS,
        details={
            "base": BASE,
            "sizes": sizes,
            "seconds": ours,
            "forward_backward_seconds": floors,
            "exponent_of_last_two": math.log(ours[-1] / ours[-2]) / math.log(sizes[-1] / sizes[-2]),
            "exponent_of_forward_backward": exponent(sizes, floors)[0],
        },
    )


def exponent(sizes: tuple[int, ...], times: list[float]) -> tuple[float, float]:
    fit = linregress([math.log(s) for s in sizes], [math.log(t) for t in times])
    return float(fit.slope), float(fit.stderr)


def timed(
    device: torch.device, batch: int, width: int, depth: int, classes: int
) -> tuple[float, float]:
    model, data = network(width, depth, classes).to(device), images(batch, 16, classes, device)
    options: dict[str, Any] = {"measures": "curvature.trace", "method": "exact"}
    for _ in range(2):  # the plan, and what later calls recall
        sl.measure(model, data, **options)
    mean_loss(model, data).backward()
    work = [seconds(lambda: sl.measure(model, data, **options), device) for _ in range(REPEATS)]
    floor = [seconds(lambda: mean_loss(model, data).backward(), device) for _ in range(REPEATS)]
    return statistics.median(work), statistics.median(floor)


def network(width: int, depth: int, classes: int) -> nn.Module:
    """Convolutions of one width, one after the other, then the mean over the image."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    channels = 3
    for _ in range(depth):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
        channels = width
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)]
    return nn.Sequential(*layers, *head).eval()
