"""The whole catalogue in one call against one call a measure.

What several measures rest on (the sweep, the head's rows, the loss and gradient at the weights, the
eigenvectors of the layers) is worked out once in one call. The ratio is of wall times; the counted
passes of both are in the details.
"""

from __future__ import annotations

import statistics

import torch
from harness import Ratio, seconds

import spiritlevel as sl
from spiritlevel.models import build

GOAL = 0.6


def run(device: torch.device, repeats: int) -> list[Ratio]:
    num_images = 512 if device.type == "cuda" else 32
    model = build("resnet18", width=16, seed=0).to(device).eval()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(num_images, 3, 32, 32, generator=generator).to(device)
    y = torch.randint(10, (num_images,), generator=generator).to(device)
    options = {
        "options": {"initial": build("resnet18", width=16, seed=1), "region": (12, 12, 8, 8)},
    }
    together: list[sl.Report] = []
    first = sl.measure(
        model, (x[:32], y[:32]), measures="*", **options
    )  # warm-up, and what applies
    names = list(first)
    alone = dict.fromkeys(names, sl.Cost())
    times: dict[str, list[float]] = {name: [] for name in names}
    whole = []
    for _ in range(repeats):
        whole.append(
            seconds(
                lambda: together.append(sl.measure(model, (x, y), measures="*", **options)), device
            )
        )
        for name in names:
            kept: list[sl.Report] = []
            times[name].append(
                seconds(
                    lambda n=name, k=kept: k.append(
                        sl.measure(model, (x, y), measures=n, **options)
                    ),
                    device,
                )
            )
            alone[name] = kept[0].cost
            print(f"  {name:36s} {times[name][-1]:.2f} s", flush=True)
    sums = [sum(times[name][i] for name in names) for i in range(len(whole))]
    ratios = sorted(a / b for a, b in zip(whole, sums, strict=True))
    separate = sum(alone.values(), sl.Cost())
    row = Ratio(
        name=f"{len(names)} measures, ResNet-18 width 16, one call over separate calls",
        ratio=statistics.median(ratios),
        low=ratios[0],
        high=ratios[-1],
        goal=GOAL,
        at_least=False,
        work_seconds=statistics.median(whole),
        floor_seconds=statistics.median(sums),
        repeats=len(whole),
        details={
            "num_images": num_images,
            "counted_together": together[-1].cost.passes(num_images),
            "counted_separately": separate.passes(num_images),
            "seconds_alone": {name: statistics.median(t) for name, t in times.items()},
        },
    )
    print(row)
    return [row]
