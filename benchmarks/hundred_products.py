"""The exact trace, a whole call, against a hundred bare products with the Hessian.

ResNet-18 of width 16 on 32 images: what a user would do by hand instead, without a plan or a check,
the graph built once. The first call on a network is compared; a later one stands beside.
"""

from __future__ import annotations

import copy
import statistics

import torch
from harness import Ratio, seconds
from networks import images, mean_loss

import spiritlevel as sl
from spiritlevel.inputs import build

PRODUCTS, CALLS, GOAL = 100, 3, 25.0


def run(device: torch.device, repeats: int) -> list[Ratio]:
    """One run of the products and the median of three calls; `repeats` is not used."""
    data = images(32, 32, 10, device)
    model = build("resnet18", width=16, seed=0).to(device).eval()
    parameters = list(model.parameters())

    def products(count: int) -> float:
        loss = mean_loss(model, data)
        gradients = torch.autograd.grad(loss, parameters, create_graph=True)
        total = 0.0
        for _ in range(count):
            signs = [torch.randint_like(p, 2) * 2 - 1 for p in parameters]
            images = torch.autograd.grad(gradients, parameters, signs, retain_graph=True)
            total += sum(float((a * b).sum()) for a, b in zip(images, signs, strict=True))
        return total / count

    found: list[float] = []
    products(2)
    sl.measure(copy.deepcopy(model), data, measures="curvature.trace")
    first, later = [], []
    for _ in range(CALLS):
        fresh = copy.deepcopy(model)
        for times in (first, later):
            times.append(
                seconds(lambda f=fresh: sl.measure(f, data, measures="curvature.trace"), device)
            )
    took = seconds(lambda: found.append(products(PRODUCTS)), device)
    exact = sl.measure(model, data, measures="curvature.trace")["curvature.trace"]
    row = Ratio(
        name="ResNet-18 width 16, 32 images: 100 products per exact trace",
        ratio=took / statistics.median(first),
        low=took / max(first),
        high=took / min(first),
        goal=GOAL,
        at_least=True,
        work_seconds=took,
        floor_seconds=statistics.median(first),
        repeats=CALLS,
        details={
            "later_call_seconds": statistics.median(later),
            "ratio_of_a_later_call": took / statistics.median(later),
            "exact": exact.value,
            "by_products": found[0],
        },
    )
    print(row)
    return [row]
