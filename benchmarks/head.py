"""The closed-form head over a loader against the forward pass alone."""

from __future__ import annotations

import torch
from harness import Ratio, compare
from torch import Tensor, nn

from spiritlevel.engine.data_pass import Budget, Needs, run_pass
from spiritlevel.engine.workspace import Workspace
from spiritlevel.inputs import build
from spiritlevel.model.surface import Surface

HEAD = Needs(head=True)  # trace and κ of the head, with their sampling errors
GOAL = 1.05


def run(device: torch.device, repeats: int) -> list[Ratio]:
    rows = []
    for name, model in {
        "VGG-small, linear head": build("vgg_small", seed=0),
        "ResNet-18, 1×1 conv + GAP head": build("resnet18", head="conv", seed=0),
    }.items():
        model = model.to(device).eval()
        num_images, batch = (4096, 512) if device.type == "cuda" else (256, 64)
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(num_images, 3, 32, 32, generator=generator).to(device)
        y = torch.randint(10, (num_images,), generator=generator).to(device)
        # batches that lie ready: a loader that is slower than the network would hide everything
        loader = list(zip(x.split(batch), y.split(batch), strict=True))
        workspace = Workspace(Surface(model, loader))
        workspace.want(HEAD)
        plan, head = workspace.plan, workspace.head
        rows.append(
            compare(
                f"{name}: head.trace and head.kappa per forward",
                lambda w=workspace, p=plan, h=head, c=batch: run_pass(
                    w.surface, p, HEAD, head=h, budget=Budget(chunk=c)
                ),
                lambda m=model, d=loader: forward(m, d),
                device=device,
                repeats=repeats,
                goal=GOAL,
                num_images=num_images,
                batch=batch,
            )
        )
        print(rows[-1])
    return rows


def forward(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> None:
    with torch.no_grad():
        for x, _ in batches:
            model(x)
