"""Training steps with flatness against plain ones: what penalties, SAM and a monitor cost.

A step is zero_grad, forward, backward and SGD with momentum. A case is a row: to add one, write a
function that makes its step and put it into CASES with its goals.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from harness import Ratio, compare
from torch import Tensor, nn

from spiritlevel.inputs import build, mlp
from spiritlevel.training import SAM, FlatnessMonitor, FlatnessPenalty, HeadPenalty, Penalty

Step = Callable[[], None]


@dataclasses.dataclass(frozen=True)
class Setup:
    """A network, its optimizer and one batch."""

    model: nn.Module
    x: Tensor
    y: Tensor
    optimizer: torch.optim.Optimizer

    def apply(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


@dataclasses.dataclass(frozen=True)
class Case:
    """One row a network; `goals` by network, None where none was set."""

    name: str
    make: Callable[[Setup], Step]
    goals: dict[str, float]
    steps: int = 1  # steps that work and floor take each, for what does not do the same every time


def plain(setup: Setup) -> Step:
    return lambda: setup.apply(F.cross_entropy(setup.model(setup.x), setup.y))


def shared_forward(setup: Setup, penalty: Penalty) -> Step:
    def step() -> None:
        with penalty.shared_forward():
            loss = F.cross_entropy(setup.model(setup.x), setup.y)
        setup.apply(loss + penalty(setup.x, setup.y, loss=loss))

    return step


def separate_forward(setup: Setup, penalty: Penalty) -> Step:
    def step() -> None:
        loss = F.cross_entropy(setup.model(setup.x), setup.y)
        setup.apply(loss + penalty(setup.x, setup.y))

    return step


def trace_squared(setup: Setup, *, every: int = 1) -> FlatnessPenalty:
    return FlatnessPenalty(setup.model, weight=1e-6, every=every)


def head_penalty(kind: str) -> Callable[[Setup], Step]:
    return lambda setup: shared_forward(setup, HeadPenalty(setup.model, 1e-6, kind=kind))


def sharpness_aware(setup: Setup) -> Step:
    optimizer = SAM(setup.optimizer, rho=0.05, model=setup.model)

    def step() -> None:
        for _ in optimizer.passes():
            optimizer.zero_grad()
            F.cross_entropy(setup.model(setup.x), setup.y).backward()
        optimizer.step()

    return step


MLP, VGG = "MLP 3072-512-100", "VGG-small"
CASES = [
    Case(
        "Tr(H²) penalty, 1 probe, one forward",
        lambda setup: shared_forward(setup, trace_squared(setup)),
        {MLP: 4.5, VGG: 6.0},
    ),
    Case(
        "Tr(H²) penalty, every=8, one forward, mean of 16 steps",
        lambda setup: shared_forward(setup, trace_squared(setup, every=8)),
        {MLP: 1.5, VGG: 1.7},
        steps=16,
    ),
    Case(
        "Tr(H²) penalty, 1 probe, penalty(x, y)",
        lambda setup: separate_forward(setup, trace_squared(setup)),
        {},
    ),
    Case(
        "Tr(H²) penalty, every=8, penalty(x, y), mean of 16 steps",
        lambda setup: separate_forward(setup, trace_squared(setup, every=8)),
        {},
        steps=16,
    ),
    *(
        Case(f"head {kind} penalty, closed form", head_penalty(kind), {MLP: 1.25, VGG: 1.25})
        for kind in ("trace", "kappa", "trace_squared")
    ),
    Case("SAM", sharpness_aware, {MLP: 2.1, VGG: 2.1}),
]
BUDGET, MONITORED = 0.05, 20.0  # of the training time, and its seconds


def run(device: torch.device, repeats: int) -> list[Ratio]:
    rows = []
    for network, setup in setups(device).items():
        for case in CASES:
            before = {name: value.clone() for name, value in setup.model.state_dict().items()}
            work, floor = case.make(setup), plain(setup)
            row = compare(
                f"{network}: {case.name}",
                lambda w=work, n=case.steps: several(w, n),
                lambda f=floor, n=case.steps: several(f, n),
                device=device,
                repeats=repeats,
                goal=case.goals.get(network),
                batch=len(setup.x),
                steps=case.steps,
            )
            setup.model.load_state_dict(before)  # every case starts from the same weights
            clear_hooks(setup.model)
            rows.append(row)
            print(row)
        rows.append(monitored(network, setup))
        print(rows[-1])
    return rows


def monitored(network: str, setup: Setup) -> Ratio:
    """Training with a monitor that is to keep a budget, over the same without its measurements."""
    data = (setup.x, setup.y)
    monitor = FlatnessMonitor(
        setup.model, data, measures="head.kappa", every=1, max_overhead=BUDGET
    )
    step, start = plain(setup), time.perf_counter()
    while time.perf_counter() - start < MONITORED:
        step()
        monitor.step()
    whole = time.perf_counter() - start
    share = 1.0 + monitor.overhead
    return Ratio(
        name=f"{network}: monitor of head.kappa with max_overhead={BUDGET}",
        ratio=share,
        low=share,
        high=share,
        goal=1.0 + BUDGET,
        at_least=False,
        work_seconds=whole,
        floor_seconds=whole / share,
        repeats=1,
        details={"rows": len(monitor.rows), "batch": len(setup.x)},
    )


def several(step: Step, count: int) -> None:
    for _ in range(count):
        step()


def setups(device: torch.device) -> dict[str, Setup]:
    """The networks of the goals: the one of paper 004, and a convolutional one."""
    networks = {
        MLP: (mlp(3072, hidden=(512,), outputs=100), 128, 100),
        VGG: (build("vgg_small", seed=0), 512 if device.type == "cuda" else 32, 10),
    }
    found = {}
    for name, (model, batch, classes) in networks.items():
        model = model.to(device).train()
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(batch, 3, 32, 32, generator=generator).to(device)
        y = torch.randint(classes, (batch,), generator=generator).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
        found[name] = Setup(model, x, y, optimizer)
    return found


def clear_hooks(model: nn.Module) -> None:
    """The next case must not pay for the hooks of this one."""
    for module in model.modules():
        module._forward_pre_hooks.clear()
        module._forward_hooks.clear()
