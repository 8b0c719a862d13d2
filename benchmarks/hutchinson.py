"""Trace to 1 % at 95 %: exact and by output probes, against weight-space Hutchinson.

What Hutchinson would take to 1 % is its measured time a product times the number of probes that its
measured variance asks for: (1.96 σ / 0.01 Tr)². ResNet-18 of width 16, at initialization and after
training on the embedded digits, enlarged to 32×32.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from harness import Ratio, compare
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.engine.weight_space.metrics import Metric
from spiritlevel.engine.weight_space.probes import WeightProbes
from spiritlevel.engine.weight_space.products import Products, Request
from spiritlevel.inputs import build, load
from spiritlevel.model.surface import Surface

RTOL, CONFIDENCE, QUANTILE = 0.01, 0.95, 1.96
GOAL = 100.0
PROBES = 32  # for the variance of Hutchinson: known to a quarter of itself then
MAX_PASSES = 20_000  # output probes: the default would stop them short of 1 % on a trained network
IMAGES = {"cpu": 256, "cuda": 512}
EPOCHS = 4


def run(device: torch.device, repeats: int) -> list[Ratio]:
    num_images = IMAGES[device.type]
    x, y = images(device)
    rows = []
    for state, epochs in (("initialized", 0), ("trained", EPOCHS)):
        model = trained(x, y, epochs)
        data = list(zip(x[:num_images].split(64), y[:num_images].split(64), strict=True))
        surface = Surface(model, data)
        products = Products(surface, chunk=64)
        exact = sl.measure(model, data, measures="curvature.trace", method="exact")
        true = exact["curvature.trace"].value
        needed, sigma = probes_needed(products, surface, num_images, true)
        space = Metric(surface, "trace", list(surface.parameters)).space
        vector = torch.ones(1, space.size, device=device)

        def product(p: Products = products, s: object = space, v: Tensor = vector) -> None:
            with torch.no_grad():
                p.multiply([Request("hessian", s, v)])

        for method in ("exact", "output_probes"):
            options = {"measures": "curvature.trace", "method": method, "rtol": RTOL}
            options |= {"confidence": CONFIDENCE, "max_passes": MAX_PASSES}
            found = sl.measure(model, data, **options)["curvature.trace"]
            reached = found.status is sl.results.Status.OK
            short = "" if reached else ", which missed 1 %: not comparable"
            rows.append(
                compare(
                    f"ResNet-18 width 16, {state}: Hutchinson to 1 % per {method}{short}",
                    product,
                    lambda m=model, d=data, o=options: sl.measure(m, d, **o),
                    device=device,
                    repeats=repeats,
                    goal=GOAL if reached else None,
                    at_least=True,
                    per=1.0 / needed,
                    num_images=num_images,
                    trace=true,
                    found=found.value,
                    found_stderr=found.stderr,
                    found_status=found.status.value,
                    relative_error=found.value / true - 1.0,
                    hutchinson_probes_needed=needed,
                    hutchinson_relative_sigma=sigma / abs(true),
                    hutchinson_probes_measured=PROBES,
                )
            )
            print(rows[-1])
    return rows


def images(device: torch.device) -> tuple[Tensor, Tensor]:
    x, y = load("digits", "train")
    x = F.interpolate(x.reshape(-1, 1, 8, 8), size=(32, 32), mode="bilinear")
    return x.expand(-1, 3, -1, -1).contiguous().to(device), y.to(device)


def trained(x: Tensor, y: Tensor, epochs: int) -> nn.Module:
    model = build("resnet18", width=16, seed=0).to(x.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    model.train()
    for _ in range(epochs):
        for part in torch.randperm(len(x), generator=generator).to(x.device).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(x[part]), y[part]).backward()
            optimizer.step()
    return model.eval()


def probes_needed(
    products: Products, surface: Surface, num_images: int, true: float
) -> tuple[int, float]:
    """Probes that bring 1.96 standard errors to 1 % of the trace, and σ of one probe."""
    metric = Metric(surface, "trace", list(surface.parameters))
    probes = WeightProbes(products, metric, seed=0, num_samples=num_images)
    probes.draw(["hessian"], PROBES)
    estimate = probes.estimate("hessian", dict.fromkeys(metric.rows, 1.0))
    sigma = math.sqrt(estimate.variance * PROBES)
    return math.ceil((QUANTILE * sigma / (RTOL * abs(true))) ** 2), sigma
