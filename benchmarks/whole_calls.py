"""Whole calls as a user makes them, against forward-backwards over the same data.

Plan, checks, second looks and all else are inside the time. The networks are those that people
have; those with a smooth part are trained for a while first, since an untrained one has a trace
that cancels. The first call in a process also loads the device's kernels, so a short call is made
twice: the second is compared, and the first is given beside it.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from harness import Ratio, seconds
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.study.models import build

FLOORS = 5  # forward-backwards that are timed
SHORT = 15.0  # seconds up to which a call is made again
Network = tuple[nn.Module, tuple[Tensor, Tensor]]


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of `measure` on a network, and what it may cost in forward-backwards."""

    name: str
    network: Callable[[torch.device], Network]
    goal: float
    options: dict[str, Any]
    needs: str = ""  # a package


def images(count: int, size: int, classes: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Smooth random images with labels that a network can learn."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randn(count, 3, 8, 8, generator=generator)
    x = F.interpolate(coarse, size=(size, size), mode="bilinear")
    y = torch.randint(classes, (count,), generator=generator)
    return x.to(device), y.to(device)


def trained(model: nn.Module, data: tuple[Tensor, Tensor], steps: int, rate: float) -> nn.Module:
    """After some steps of AdamW on all of the data."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        mean_loss(model, data).backward()
        optimizer.step()
    return model.eval()


def mean_loss(model: nn.Module, data: tuple[Tensor, Tensor]) -> Tensor:
    scores = model(data[0])
    scores = getattr(scores, "logits", scores)
    return F.cross_entropy(scores.flatten(0, -2), data[1].flatten())


def resnet18(device: torch.device) -> Network:
    data = images(256, 32, 10, device)
    return build("resnet18", seed=0).to(device).eval(), data


def vgg_small(device: torch.device) -> Network:
    data = images(128, 32, 10, device)
    return build("vgg_small", seed=0).to(device).eval(), data


def resnet50(device: torch.device) -> Network:
    from torchvision.models import resnet50

    torch.manual_seed(0)
    return resnet50().to(device).eval(), images(64, 224, 1000, device)


def vit(device: torch.device) -> Network:
    from torchvision.models import vit_b_16

    torch.manual_seed(0)
    data = images(32, 224, 10, device)
    return trained(vit_b_16(num_classes=10).to(device).eval(), data, 30, 1e-4), data


def gpt2(device: torch.device) -> Network:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    tokens = torch.randint(1000, (8, 513)).sort(dim=1).values.to(device)  # something to learn
    data = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    model = GPT2LMHeadModel(GPT2Config(attn_implementation="eager")).to(device).eval()
    return trained(model, data, 60, 3e-4), data


def efficientnet(device: torch.device) -> Network:
    from efficientnet_lite_pytorch import EfficientNet

    torch.manual_seed(0)
    model = EfficientNet.from_name("efficientnet-lite0").to(device).eval()
    return model, images(1000, 224, 1000, device)


CALLS = [
    Call("ResNet-18, 256 images, exact trace", resnet18, 10, {"measures": "curvature.trace"}),
    Call("VGG-small, 128 images, exact trace", vgg_small, 10, {"measures": "curvature.trace"}),
    Call("ResNet-18, 256 images, λ_max", resnet18, 0, {"measures": "curvature.lambda_max"}),
    Call(
        "ResNet-50, 64 images, trace to 5 %",
        resnet50,
        8,
        {"measures": "curvature.trace", "rtol": 0.05},
        "torchvision",
    ),
    Call(
        "EfficientNet-Lite0, 1,000 images, default measures",
        efficientnet,
        15,
        {},
        "efficientnet_lite_pytorch",
    ),
    Call(
        "ViT-B/16, 32 images, trace to 10 %",
        vit,
        40,
        {"measures": "curvature.trace", "rtol": 0.1},
        "torchvision",
    ),
    Call(
        "GPT-2 small, 8 × 512 tokens, trace and κ to 10 %",
        gpt2,
        25,
        {"measures": ["curvature.trace", "relative.kappa"], "rtol": 0.1},
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
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    results: list[Any] = []

    def call_it() -> None:
        results.append(sl.measure(model, data, **call.options))

    first = took = seconds(call_it, device)
    if first <= SHORT:
        took = seconds(call_it, device)
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    found = [f"{name} {m.value:.4g} ± {m.stderr or 0:.2g}" for name, m in results[0].items()]
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
        details={"text": "; ".join(found), "peak_bytes": peak, "first_call_seconds": first},
    )
