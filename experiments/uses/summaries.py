"""Means with intervals, rank correlations, and the machine, for the results of the uses."""

from __future__ import annotations

import math
import platform
import statistics
from collections.abc import Sequence
from typing import Any

import scipy.stats
import torch

import spiritlevel as sl


def mean_and_interval(values: Sequence[float], confidence: float = 0.95) -> dict[str, Any]:
    """Mean, n, and the half-width of Student's interval; None for a single value."""
    count, mean = len(values), statistics.fmean(values)
    half = None
    if count > 1:
        spread = statistics.stdev(values) / math.sqrt(count)
        half = float(scipy.stats.t.ppf(0.5 + confidence / 2, count - 1)) * spread
    return {"mean": mean, "half_width": half, "n": count}


def share_and_interval(count: int, of: int, confidence: float = 0.95) -> dict[str, Any]:
    """A share, and Wilson's interval; None of nothing."""
    if not of:
        return {"count": count, "n": of, "share": None, "low": None, "high": None}
    interval = scipy.stats.binomtest(count, of).proportion_ci(confidence, method="wilson")
    ends = {"low": float(interval.low), "high": float(interval.high)}
    return {"count": count, "n": of, "share": count / of} | ends


def spearman(left: Sequence[float], right: Sequence[float]) -> float:
    """Rank correlation."""
    return float(scipy.stats.spearmanr(left, right).statistic)


def machine(device: torch.device | None = None) -> dict[str, str]:
    """Where a network was measured; without a device, on the processor."""
    on_gpu = device is not None and device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if on_gpu else platform.machine(),
        "torch": torch.__version__,
        "spiritlevel": sl.__version__,
    }


def compact(value: Any) -> Any:
    """The same with six digits for every number: more say nothing here, and files stay small."""
    if isinstance(value, dict):
        return {key: compact(each) for key, each in value.items()}
    if isinstance(value, list):
        return [compact(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
