"""Ratios measured side by side in one run, with the machine they were measured on."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

RESULTS = pathlib.Path(__file__).parent / "results"


@dataclasses.dataclass(frozen=True)
class Ratio:
    """How many times longer `work` takes than `floor`; the two alternate within one run."""

    name: str
    ratio: float  # median over the pairs
    low: float  # smallest and largest pair: what the machine's noise does
    high: float
    goal: float | None
    at_least: bool  # whether the goal is a lower bound
    work_seconds: float
    floor_seconds: float
    repeats: int
    details: dict[str, Any]

    def __str__(self) -> str:
        sign = "≥" if self.at_least else "≤"
        goal = "" if self.goal is None else f"  goal {sign} {self.goal:.3g}"
        return (
            f"{self.name:58s} {self.ratio:6.3f}  [{self.low:.3f}, {self.high:.3f}]"
            f"{goal}  ({self.work_seconds:.3g} s / {self.floor_seconds:.3g} s, n={self.repeats})"
        )


def seconds(function: Callable[[], object], device: torch.device) -> float:
    """Wall time of one call, the device's queue included."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    function()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def compare(
    name: str,
    work: Callable[[], object],
    floor: Callable[[], object],
    *,
    device: torch.device,
    repeats: int,
    goal: float | None = None,
    at_least: bool = False,
    per: float = 1.0,
    **details: Any,
) -> Ratio:
    """Warm both up, then time them in turn; `per` divides the ratio (columns, say)."""
    for _ in range(2):
        seconds(work, device)
        seconds(floor, device)
    pairs = [(seconds(work, device), seconds(floor, device)) for _ in range(repeats)]
    ratios = sorted(a / b / per for a, b in pairs)
    return Ratio(
        name=name,
        ratio=statistics.median(ratios),
        low=ratios[0],
        high=ratios[-1],
        goal=goal,
        at_least=at_least,
        work_seconds=statistics.median(a for a, _ in pairs),
        floor_seconds=statistics.median(b for _, b in pairs),
        repeats=repeats,
        details=details,
    )


def machine(device: torch.device) -> dict[str, Any]:
    """What the numbers belong to."""
    chip = platform.processor() or platform.machine()
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line for line in cpuinfo.read_text().splitlines() if "model name" in line]
        chip = models[0].partition(":")[2].strip() if models else chip
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else chip,
        "threads": torch.get_num_threads(),
        "tf32": device.type == "cuda" and torch.backends.cudnn.allow_tf32,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def record(name: str, device: torch.device, rows: list[Ratio], out: pathlib.Path) -> None:
    """Write one JSON file a benchmark and device."""
    out.mkdir(parents=True, exist_ok=True)
    content = {
        "benchmark": name,
        "machine": machine(device),
        "rows": [dataclasses.asdict(r) for r in rows],
    }
    suffix = "-tf32" if content["machine"]["tf32"] else ""
    path = out / f"{name}-{device.type}{suffix}.json"
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    print(f"wrote {path.name}")
