"""Training steps of studies, recorded as CUDA graphs, against the same steps compiled before.

How long the compiler takes stands in the details: a study gains only if it trains for longer.
"""

from __future__ import annotations

import torch
from harness import Ratio, compare, seconds
from recorded import LENET, MEMBERS, STEPS, made, several, stacked

from spiritlevel.study import Study
from spiritlevel.study.runs.machine import repeatable

NETWORKS = {
    "DenseNet-121 of growth 12": {"name": "densenet121", "growth": 12},
    "EfficientNet-Lite0 at 128 pixels": {"name": "efficientnet_lite0"},
    "ResNet-18": {"name": "resnet18"},
}
BATCH = 128


def run(device: torch.device, repeats: int) -> list[Ratio]:
    """Nothing without a GPU, for which steps are recorded."""
    if device.type != "cuda":
        return []
    rows = [alone(name, model, device, repeats) for name, model in NETWORKS.items()]
    return [*rows, together(device, repeats)]


def alone(name: str, model: dict, device: torch.device, repeats: int) -> Ratio:
    """Steps in bfloat16, as large networks are trained."""
    x = torch.rand(BATCH, 3, 32, 32, device=device)
    y = torch.randint(10, (BATCH,), device=device)
    steps = []
    for is_compiled in (False, True):
        training = {"batch_size": BATCH, "lr": 1e-3, "momentum": 0.9, "autocast": "bfloat16"}
        training["compile"] = is_compiled
        (settings,) = Study(name="alone", model=model, training=training, seeds=1).runs()
        steps.append(made(settings, x, y))
    return _compared(f"{name}, batch {BATCH}, bfloat16", steps, (x, y), device, repeats)


def together(device: torch.device, repeats: int) -> Ratio:
    """A step of many networks at once, each with its own batch."""
    x = torch.rand(MEMBERS * BATCH, 3, 32, 32, device=device)
    y = torch.randint(10, (MEMBERS * BATCH,), device=device)
    numbers = torch.arange(MEMBERS * BATCH, device=device).view(MEMBERS, BATCH)
    steps = []
    for is_compiled in (False, True):
        training = {"batch_size": BATCH, "lr": 1e-3, "momentum": 0.9, "compile": is_compiled}
        runs = Study(name="together", model=LENET, training=training, seeds=MEMBERS).runs()
        steps.append(stacked(runs, x, y).step)
    name = f"{MEMBERS} LeNet-5 together, batch {BATCH}"
    return _compared(name, steps, (numbers,), device, repeats)


def _compared(name: str, steps: list, inputs: tuple, device: torch.device, repeats: int) -> Ratio:
    plain, fused = steps
    with repeatable(threads=1):
        compiling = seconds(lambda: fused(*inputs), device)
        row = compare(
            f"{name}: a recorded step over one compiled",
            lambda: several(plain, *inputs),
            lambda: several(fused, *inputs),
            device=device,
            repeats=repeats,
            steps=STEPS,
            seconds_of_the_compiler=compiling,
        )
    print(row)
    return row
