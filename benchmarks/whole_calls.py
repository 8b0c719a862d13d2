"""Whole calls as a user makes them, against forward-backwards over the same data.

Plan, checks, second looks and all else are inside the time. The networks are those that people
have; those with a smooth part are trained for a while first, since an untrained one has a trace
that cancels. The first call in a process also loads the device's kernels, so it is made on another
copy of the network; the first one on this copy is compared. A later one, as a monitor makes,
recalls what was found out about the network, and is given beside it. The loss says how far the
network has learned its data.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from harness import Ratio, seconds
from networks import (
    Network,
    efficientnet,
    gpt2,
    llama,
    mean_loss,
    resnet18,
    resnet50,
    vgg_small,
    vit,
)

import spiritlevel as sl

FLOORS = 5  # forward-backwards that are timed
FEW = 3  # measures whose values are recorded, too


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of `measure` on a network, and what it may cost in forward-backwards."""

    name: str
    network: Callable[[torch.device], Network]
    goal: float
    options: dict[str, Any]
    needs: str = ""  # a package


CALLS = [
    Call("ResNet-18, 256 images, exact trace", resnet18, 10, {"measures": "curvature.trace"}),
    Call("VGG-small, 128 images, exact trace", vgg_small, 10, {"measures": "curvature.trace"}),
    Call("ResNet-18, 256 images, λ_max", resnet18, 0, {"measures": "curvature.lambda_max"}),
    Call(
        "ResNet-50, 64 images, trace to 10 %",
        resnet50,
        5,
        {"measures": "curvature.trace", "rtol": 0.1},
        "torchvision",
    ),
    Call(
        "ResNet-50, 64 images, trace to 1 %",
        resnet50,
        8,
        {"measures": "curvature.trace", "rtol": 0.01, "max_passes": 2000},
        "torchvision",
    ),
    Call(
        "EfficientNet-Lite0, 1,000 images, default measures",
        efficientnet,
        6,
        {},
        "efficientnet_lite_pytorch",
    ),
    *(
        Call(
            f"ViT-B/16, 32 images, trace to {percent} %",
            vit,
            goal,
            {"measures": "curvature.trace", "rtol": percent / 100, "max_passes": 2000},
            "torchvision",
        )
        for percent, goal in ((10, 6), (3, 10), (1, 40))
    ),
    Call("ViT-B/16, 32 images, default measures", vit, 20, {}, "torchvision"),
    *(
        Call(
            f"GPT-2 small, 8 × 512 tokens, trace to {percent} %",
            gpt2,
            goal,
            {"measures": "curvature.trace", "rtol": percent / 100, "max_passes": 2000},
            "transformers",
        )
        for percent, goal in ((10, 8), (3, 10), (1, 30))
    ),
    Call(
        "GPT-2 small, 8 × 512 tokens, trace and κ to 10 %",
        gpt2,
        14,
        {"measures": ["curvature.trace", "relative.kappa"], "rtol": 0.1},
        "transformers",
    ),
    Call("GPT-2 small, 8 × 512 tokens, default measures", gpt2, 20, {}, "transformers"),
    Call(
        "Llama-shaped, 1.2 B weights, 4 × 512 tokens, κ to 20 %",
        llama,
        15,
        {"measures": "relative.kappa", "rtol": 0.2},
        "transformers",
    ),
]


def run(device: torch.device, repeats: int) -> list[Ratio]:
    """Every call once; `repeats` is not used."""
    rows: list[Ratio] = []
    for call in CALLS:
        if call.needs and importlib.util.find_spec(call.needs) is None:
            print(f"{call.name}: left out, needs {call.needs}")
            continue
        if device.type == "cpu" and call.network not in (resnet18, vgg_small):
            continue
        rows.append(measured(call, device))
        print(rows[-1], rows[-1].details["text"], flush=True)
    return rows


def measured(call: Call, device: torch.device) -> Ratio:
    model, data = call.network(device)
    floor = sorted(
        seconds(lambda: mean_loss(model, data).backward(), device) for _ in range(FLOORS)
    )
    model.zero_grad(set_to_none=True)
    with torch.no_grad():
        loss = float(mean_loss(model, data))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    results: list[Any] = []
    loading = seconds(lambda: sl.measure(copy.deepcopy(model), data, **call.options), device)

    def call_it() -> None:
        results.append(sl.measure(model, data, **call.options))

    took, later = seconds(call_it, device), seconds(call_it, device)
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    shown = results[0] if len(results[0]) < FEW else {}
    found = [f"{name} {m.value:.4g} ± {m.stderr or 0:.2g}: {m.text}" for name, m in shown.items()]
    found.append(str(results[0].cost))
    return Ratio(
        name=call.name,
        ratio=took / floor[FLOORS // 2],
        low=took / floor[-1],
        high=took / floor[0],
        goal=call.goal or None,
        at_least=False,
        work_seconds=took,
        floor_seconds=floor[FLOORS // 2],
        repeats=1,
        details={
            "text": "; ".join(found),
            "loss": loss,
            "peak_bytes": peak,
            "first_in_process_seconds": loading,
            "later_call_seconds": later,
            "later_call_ratio": later / floor[FLOORS // 2],
        },
    )
