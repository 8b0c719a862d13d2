"""Sharpness against the edge of stability while a network is trained: runs, summaries, pictures."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch
from summaries import machine, mean_and_interval
from torch import Tensor
from torch.nn import functional as F

import spiritlevel as sl
from spiritlevel.inputs import build, digits
from spiritlevel.pages import figures

SAMPLES = 500
OPTIMIZERS: dict[str, Callable[[Iterable[Tensor], float], torch.optim.Optimizer]] = {
    "SGD": lambda p, rate: torch.optim.SGD(p, rate),
    "momentum": lambda p, rate: torch.optim.SGD(p, rate, momentum=0.9),
    "Adam": lambda p, rate: torch.optim.Adam(p, rate),
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """One training run."""

    optimizer: str
    rate: float
    seed: int
    batch: int | None = None  # None for all samples
    rising: bool = False


@dataclasses.dataclass(frozen=True)
class Edge:
    """A network whose sharpness is followed for some steps, and how it is trained."""

    model: str
    arguments: dict[str, Any]
    samples: int
    steps: int
    every: int
    rates: dict[tuple[str, int | None], tuple[float, ...]]  # by optimizer and batch

    def settings(self, seeds: Iterable[int], optimizers: Iterable[str]) -> list[Setting]:
        """All runs."""
        return [
            Setting(name, rate, seed, batch)
            for seed in seeds
            for (name, batch), rates in self.rates.items()
            for rate in rates
            if name in optimizers
        ]


EDGES = {
    "edge": Edge(
        "mlp",
        {"hidden": (32, 32), "activation": "tanh"},
        samples=SAMPLES,
        steps=1500,
        every=50,
        rates={("SGD", None): (0.5, 1.0, 2.0), ("Adam", None): (0.003, 0.01, 0.03)},
    ),
    "images": Edge(
        "lenet5",
        {"channels": 3, "size": 32},
        samples=2000,
        steps=2000,
        every=50,
        rates={
            ("SGD", None): (0.1, 0.2, 0.5),
            ("Adam", None): (0.0003, 0.001, 0.003),
            ("SGD", 64): (0.1, 0.2, 0.5),
        },
    ),
}


def samples() -> tuple[Tensor, Tensor]:
    """Some digits, centred and scaled."""
    x, y = digits("train")
    x = (x - x.mean()) / x.std()
    return x[:SAMPLES], y[:SAMPLES]


def edge_run(setting: Setting, edge: Edge, data: tuple[Tensor, Tensor]) -> dict[str, Any]:
    """Sharpness and threshold while a network fits the data."""
    x, y = data
    targets = F.one_hot(y, 10).float()
    model = build(edge.model, seed=setting.seed, **edge.arguments).to(x.device)
    optimizer = OPTIMIZERS[setting.optimizer](model.parameters(), setting.rate)
    generator = torch.Generator().manual_seed(setting.seed)
    monitor = sl.FlatnessMonitor(
        model,
        (x, targets),
        measures=(),
        every=edge.every,
        optimizer=optimizer,
        rates="sharpness",
        warn_above=None,
        loss="mse",
        strict=True,
    )
    losses = []
    for _ in range(edge.steps):
        some = slice(None)
        if setting.batch is not None:
            some = torch.randint(len(x), (setting.batch,), generator=generator).to(x.device)
        optimizer.zero_grad()
        loss = F.mse_loss(model(x[some]), targets[some])
        loss.backward()
        optimizer.step()
        if monitor.step():
            losses.append(loss.item())
    return dataclasses.asdict(setting) | {
        "machine": machine(x.device),
        "step": [row["step"] for row in monitor.rows],
        "sharpness": [row["rate.sharpness"] for row in monitor.rows],
        "threshold": monitor.rows[-1]["rate.threshold"],
        "loss": losses,
    }


def runs_at(runs: list[dict[str, Any]], name: str, batch: int | None, rate: float) -> list[Any]:
    """All seeds of one optimizer at one rate."""
    return [r for r in runs if (r["optimizer"], r["batch"], r["rate"]) == (name, batch, rate)]


def edge_summary(runs: list[dict[str, Any]], edge: Edge) -> dict[str, Any]:
    """Sharpness over threshold at the start and in the last fifth, over the seeds."""
    out = {}
    for (name, batch), rates in edge.rates.items():
        for rate in rates:
            own = runs_at(runs, name, batch, rate)
            if not own:
                continue
            ratios = [[s / r["threshold"] for s in r["sharpness"]] for r in own]
            fifth = len(ratios[0]) // 5
            batches = "" if batch is None else f", batches of {batch}"
            out[f"{name} {rate}{batches}"] = {
                "n": len(own),
                "threshold": own[0]["threshold"],
                "first": mean_and_interval([each[0] for each in ratios]),
                "last_fifth": mean_and_interval([sum(each[-fifth:]) / fifth for each in ratios]),
                "largest": mean_and_interval([max(each) for each in ratios]),
                "last_loss": mean_and_interval([r["loss"][-1] for r in own]),
            }
    return out


def drawn(runs: list[dict[str, Any]], edge: Edge, kind: str) -> bytes:
    """Sharpness over its threshold, one panel per optimizer, one line per run."""
    figure = figures.new_figure(3.6 + 2.3 * len(edge.rates), 3.0)
    panels = figure.subplots(1, len(edge.rates), sharey=True)
    largest = max(max(run["sharpness"]) / run["threshold"] for run in runs)
    for ax, ((name, batch), rates) in zip(panels, edge.rates.items(), strict=True):
        for i, rate in enumerate(rates):
            for j, run in enumerate(runs_at(runs, name, batch, rate)):
                ratios = [each / run["threshold"] for each in run["sharpness"]]
                label = f"learning rate {rate:g}" if j == 0 else None
                ax.plot(run["step"], ratios, color=figures.COLOURS[i], linewidth=1.0, label=label)
        ax.axhline(1.0, color=figures.GREY, linestyle="--", linewidth=0.8)
        where = "on all samples" if batch is None else f"in batches of {batch}"
        ax.set_xlabel(f"steps of {name} {where}", fontsize=figures.FONT)
        ax.legend(frameon=False, fontsize=figures.FONT - 1, loc="best")
        ax.tick_params(labelsize=figures.FONT - 1)
        ax.set_ylim(0.0, max(1.6, 1.05 * largest))
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)
    panels[0].set_ylabel("sharpness / edge of stability", fontsize=figures.FONT)
    return figures.save(figure, kind)
