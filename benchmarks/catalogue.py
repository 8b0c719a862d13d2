"""The whole catalogue in one call against one call a measure.

What several measures rest on (the sweep, the head's rows, the loss and gradient at the weights, the
eigenvectors of the layers) is worked out once in one call. The ratio is of wall times; the counted
passes of both are in the details.
"""

from __future__ import annotations

import statistics

import torch
from harness import Ratio, seconds
from hutchinson import images, trained
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.inputs import build

GOAL = 0.6
IMAGES, EPOCHS = 512, 8


def run(device: torch.device, repeats: int) -> list[Ratio]:
    x, y = (part[:IMAGES] for part in images(device))
    fresh = build("resnet18", width=16, seed=0).to(device).eval()
    networks = {"initialized": fresh}
    if device.type == "cuda":  # at a minimum more levels of noise are tried: too long for a CPU
        networks["trained on digits"] = trained(x, y, EPOCHS)
    return [compared(name, model, x, y, repeats) for name, model in networks.items()]


def compared(state: str, model: nn.Module, x: Tensor, y: Tensor, repeats: int) -> Ratio:
    start = build("resnet18", width=16, seed=1)
    options = {"options": {"initial": start, "region": (12, 12, 8, 8)}}
    together: list[sl.Report] = []
    names = list(sl.measure(model, (x[:32], y[:32]), measures="*", **options))  # also a warm-up
    alone = dict.fromkeys(names, sl.results.Cost())
    times: dict[str, list[float]] = {name: [] for name in names}
    whole = []

    def measured(kept: list[sl.Report], pattern: str) -> None:
        kept.append(sl.measure(model, (x, y), measures=pattern, **options))

    for _ in range(repeats):
        whole.append(seconds(lambda: measured(together, "*"), x.device))
        for name in names:
            kept: list[sl.Report] = []
            times[name].append(seconds(lambda n=name, k=kept: measured(k, n), x.device))
            alone[name] = kept[0].cost
    sums = [sum(times[name][i] for name in names) for i in range(len(whole))]
    ratios = sorted(a / b for a, b in zip(whole, sums, strict=True))
    separate = sum(alone.values(), sl.results.Cost())
    row = Ratio(
        name=f"{len(names)} measures in one call over one call each, ResNet-18 width 16, {state}",
        ratio=statistics.median(ratios),
        low=ratios[0],
        high=ratios[-1],
        goal=GOAL,
        at_least=False,
        work_seconds=statistics.median(whole),
        floor_seconds=statistics.median(sums),
        repeats=len(whole),
        details={
            "num_images": len(x),
            "counted_together": together[-1].cost.passes(len(x)),
            "counted_separately": separate.passes(len(x)),
            "seconds_alone": {name: statistics.median(t) for name, t in times.items()},
        },
    )
    print(row)
    return row
