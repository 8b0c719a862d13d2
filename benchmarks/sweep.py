"""The exact sweep against forward-backwards: trace of all layers, and trace + κ + ρ together.

Floor: one forward-backward of the mean loss with all parameter gradients, at the batch size where
it is fastest. The ratio is divided by the C − 1 backward passes that exactness needs. What comes
before the sweep (plan and certificate, a few samples) is given separately: it does not grow with
the data.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from harness import Ratio, compare, seconds
from torch import Tensor, nn

from spiritlevel.engine.data_pass import Budget, Needs, run_pass
from spiritlevel.engine.workspace import Workspace
from spiritlevel.inputs import build
from spiritlevel.model.surface import Surface

CLASSES = 10
TRACE = Needs(sweep=True)
ALL = Needs(sweep=True, kappa=True, rho=True)


def networks(device: torch.device) -> dict[str, tuple[nn.Module, int]]:
    """Name to (network, number of images)."""
    small = {
        "VGG-small": (build("vgg_small", seed=0), 256),
        "ResNet-18 width 16": (build("resnet18", width=16, seed=0), 256),
    }
    if device.type == "cuda":
        small["ResNet-18"] = (build("resnet18", seed=0), 1024)
    return small


def forward_backward(model: nn.Module, x: Tensor, y: Tensor, batch: int) -> None:
    for start in range(0, len(x), batch):
        part = slice(start, start + batch)
        model.zero_grad(set_to_none=True)
        F.cross_entropy(model(x[part]), y[part]).backward()


def run(device: torch.device, repeats: int) -> list[Ratio]:
    rows = []
    for name, (model, num_images) in networks(device).items():
        model = model.to(device).eval()
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(num_images, 3, 32, 32, generator=generator).to(device)
        y = torch.randint(CLASSES, (num_images,), generator=generator).to(device)
        best = fastest_batch(model, x, y, device)
        for label, needs, goal in (("trace", TRACE, 0.75), ("trace + κ + ρ", ALL, 0.9)):
            workspace = Workspace(Surface(model, (x, y)))
            workspace.want(needs)
            plan, chunk = (
                workspace.plan,
                workspace.plan.footprint.chunk(workspace.memory, sweep=True),
            )
            workspace.run(needs)
            certificate = seconds(lambda workspace=workspace: workspace.certificates, device)
            rows.append(
                compare(
                    f"{name}, {label}, per column and forward-backward",
                    lambda w=workspace, p=plan, n=needs, c=chunk: run_pass(
                        w.surface, p, n, head=None, budget=Budget(chunk=c)
                    ),
                    lambda m=model, a=x, b=y, s=best: forward_backward(m, a, b, s),
                    device=device,
                    repeats=repeats,
                    goal=goal,
                    per=CLASSES - 1,
                    num_images=num_images,
                    floor_batch=best,
                    chunk=min(chunk, num_images),
                    certificate_seconds=certificate,
                )
            )
            print(rows[-1])
    return rows


def fastest_batch(model: nn.Module, x: Tensor, y: Tensor, device: torch.device) -> int:
    """The floor gets the batch size that suits it best."""
    times = {}
    for batch in (32, 64, 128, 256, 512, 1024):
        if batch <= len(x):
            for _ in range(3):
                took = seconds(lambda b=batch: forward_backward(model, x, y, b), device)
                times[batch] = min(times.get(batch, took), took)
    return min(times, key=times.__getitem__)
