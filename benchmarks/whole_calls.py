"""Whole calls as a user makes them, against forward-backwards over the same data.

Plan, checks, second looks and all else are inside the time. The networks are those that people
have, trained until they have learned their data (the loss is given), and two as initialized. The
first call in a process also loads the device's kernels, so it is made on another copy of the
network; the first one on this copy is compared. A later one, as a monitor makes, recalls what was
found out about the network, and is given beside it. Where PyHessian is installed, its largest
eigenvalue is asked of the same network in the same run.
"""

from __future__ import annotations

import copy
import dataclasses
import gc
import importlib.util
from collections.abc import Callable
from typing import Any

import networks
import torch
from harness import Ratio, seconds
from networks import NotTrained, mean_loss
from torch import Tensor, nn

import spiritlevel as sl

FLOORS = 5  # forward-backwards that are timed
FEW = 3  # measures whose values are recorded, too
Found = Callable[[nn.Module, tuple[Tensor, Tensor]], tuple[str, str]]  # values, and their cost


@dataclasses.dataclass(frozen=True)
class Call:
    """A call, and what it may cost in forward-backwards: the first, and a later one."""

    name: str
    ask: Found
    goal: float | None = None
    later_goal: float | None = None


@dataclasses.dataclass(frozen=True)
class Subject:
    """A network, and the calls that are made on it."""

    name: str
    network: Callable[[torch.device], networks.Network]
    calls: tuple[Call, ...]
    needs: str = ""  # a package
    on_cpu: bool = False


def measuring(**options: Any) -> Found:
    """A call of `measure`."""

    def ask(model: nn.Module, data: tuple[Tensor, Tensor]) -> tuple[str, str]:
        report = sl.measure(model, data, **options)
        shown = report if len(report) < FEW else {}
        values = [
            f"{name} {m.value:.4g} ± {m.stderr or 0:.2g}: {m.text}" for name, m in shown.items()
        ]
        return "; ".join(values), str(report.cost)

    return ask


def largest(model: nn.Module, data: tuple[Tensor, Tensor]) -> tuple[str, str]:
    """The largest eigenvalue to 1 %, with its interval."""
    found = sl.eigenvalues(model, data, num=1)
    return f"{float(found.values[0]):.5g} ± {float(found.errors[0]):.2g}", str(found.cost)


def auditing(model: nn.Module, data: tuple[Tensor, Tensor]) -> tuple[str, str]:
    """Of 125 samples."""
    x, y = data
    found = sl.audit(model, (x[:125], y[:125]))
    return "", str(found.cost)


EXACT = Call("exact trace", measuring(measures="curvature.trace", method="exact"))
LAMBDA = Call("λ_max to 1 %", largest)


def trace(percent: int, goal: float | None, later: float | None = None) -> Call:
    """To a precision, however many passes that takes."""
    options = {"measures": "curvature.trace", "rtol": percent / 100, "max_passes": 2000}
    return Call(f"trace to {percent} %", measuring(**options), goal, later)


def default(goal: float | None = 20) -> Call:
    """Measures as they come."""
    return Call("default measures", measuring(), goal)


def subjects() -> list[Subject]:
    """All of them; the dearest last."""
    both = {"measures": ["curvature.trace", "relative.kappa"], "rtol": 0.1}
    matrices = Call("trace and κ of every matrix to 10 %", measuring(**both), 14, 9)
    kappa = Call("κ to 20 %", measuring(measures="relative.kappa", rtol=0.2), 15, 10)
    return [
        Subject("MLP, 512 samples", networks.mlp, (EXACT, LAMBDA), on_cpu=True),
        Subject("tanh MLP, 512 samples", networks.tanh_mlp, (EXACT, LAMBDA), on_cpu=True),
        Subject("VGG-small, 128 images", networks.vgg_small, (EXACT, LAMBDA), on_cpu=True),
        Subject("VGG-small as initialized", networks.untrained_vgg_small, (EXACT, LAMBDA)),
        Subject("ResNet-18, 256 images", networks.resnet18, (EXACT, LAMBDA)),
        Subject("ResNet-18 as initialized", networks.untrained_resnet18, (EXACT, LAMBDA)),
        Subject(
            "GPT-2 small, 8 × 512 tokens",
            networks.gpt2,
            (trace(10, 8, 4), trace(3, 10), trace(1, 30), matrices, default(), LAMBDA),
            "transformers",
        ),
        Subject(
            "ViT-B/16, 32 images",
            networks.vit,
            (trace(10, 6), trace(3, 10), trace(1, 40), default(), LAMBDA),
            "torchvision",
        ),
        Subject(
            "ResNet-50, 64 images", networks.resnet50, (trace(10, 5), trace(1, 8)), "torchvision"
        ),
        Subject(
            "EfficientNet-Lite0, 1,000 images",
            networks.efficientnet,
            (default(6), Call("audit of 125 images", auditing)),
            "efficientnet_lite_pytorch",
        ),
        Subject(
            "Llama-shaped, 1.2 B weights, 4 × 512 tokens", networks.llama, (kappa,), "transformers"
        ),
    ]


def run(device: torch.device, repeats: int) -> list[Ratio]:
    """Every call once; `repeats` is not used."""
    rows: list[Ratio] = []
    for subject in subjects():
        if subject.needs and importlib.util.find_spec(subject.needs) is None:
            print(f"{subject.name}: left out, needs {subject.needs}")
            continue
        if device.type == "cpu" and not subject.on_cpu:
            continue
        try:
            model, data = subject.network(device)
        except NotTrained as error:
            print(f"{subject.name}: left out, {error}")
            continue
        for call in subject.calls:
            rows.append(measured(subject, call, model, data))
            print(
                rows[-1], rows[-1].details["later_call_ratio"], rows[-1].details["text"], flush=True
            )
        del model, data
        gc.collect()
    return rows


def measured(subject: Subject, call: Call, model: nn.Module, data: tuple[Tensor, Tensor]) -> Ratio:
    device = data[0].device
    floor = sorted(
        seconds(lambda: mean_loss(model, data).backward(), device) for _ in range(FLOORS)
    )
    model.zero_grad(set_to_none=True)
    with torch.no_grad():
        loss = float(mean_loss(model, data))
    first = call is subject.calls[0]  # the kernels are loaded after it
    loading = seconds(lambda: call.ask(copy.deepcopy(model), data), device) if first else None
    fresh = copy.deepcopy(model)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    found: list[tuple[str, str]] = []
    took, later = (seconds(lambda: found.append(call.ask(fresh, data)), device) for _ in range(2))
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    details: dict[str, Any] = {
        "text": "; ".join(filter(None, found[0])),
        "later_text": found[1][1],
        "loss": loss,
        "peak_bytes": peak,
        "first_in_process_seconds": loading,
        "later_call_seconds": later,
        "later_call_ratio": later / floor[FLOORS // 2],
        "later_call_goal": call.later_goal,
    }
    if call is LAMBDA and importlib.util.find_spec("pyhessian") is not None:
        details |= power_iteration(model, data, floor[FLOORS // 2])
    return Ratio(
        name=f"{subject.name}, {call.name}",
        ratio=took / floor[FLOORS // 2],
        low=took / floor[-1],
        high=took / floor[0],
        goal=call.goal,
        at_least=False,
        work_seconds=took,
        floor_seconds=floor[FLOORS // 2],
        repeats=1,
        details=details,
    )


class Scores(nn.Module):
    """Plain scores, one row a prediction, as PyHessian takes them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            scores = self.model(x)
        return getattr(scores, "logits", scores).flatten(0, -2)


def power_iteration(
    model: nn.Module, data: tuple[Tensor, Tensor], floor: float
) -> dict[str, float]:
    """PyHessian's largest eigenvalue by its own rule to stop, and what it took."""
    from pyhessian import hessian

    device = data[0].device
    flat, values = (data[0], data[1].flatten()), []
    for seed in (0, 1):  # the second counts
        torch.manual_seed(seed)
        other = Scores(copy.deepcopy(model))
        took = seconds(
            lambda other=other: values.append(
                hessian(
                    other, nn.CrossEntropyLoss(), data=flat, cuda=device.type == "cuda"
                ).eigenvalues()[0][0]
            ),
            device,
        )
    return {"pyhessian_ratio": took / floor, "pyhessian_value": float(values[-1])}
