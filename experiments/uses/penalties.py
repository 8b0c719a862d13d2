"""What penalties, SAM and ASAM do to a small network with BatchNorm, beside plain training.

A ResNet-18 with 8 channels in its first stage learns the digits of the package: 15 epochs of SGD at
each of two rates, without weight decay. For each seed all methods start from the same weights and
see the same batches. Afterwards, on all training images and in float64: κ, Gini impurity and loss;
κ again with the logits of the seed's networks scaled until all are equally confident; and the norm
of all parameters. Writes experiments/results/uses/penalties.json.

`python experiments/uses/penalties.py`
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pathlib
import time
from collections.abc import Callable
from typing import Any

import torch
from summaries import compact, machine, mean_and_interval
from torch import Tensor, nn
from torch.nn import functional as F

import spiritlevel as sl
from spiritlevel.inputs import build, digits
from spiritlevel.training import Penalty
from spiritlevel.verbs.comparison.measuring import equally_confident

RESULTS = pathlib.Path(__file__).parents[1] / "results" / "uses"
MEASURES = ["relative.kappa", "softmax.gini"]

Data = tuple[Tensor, Tensor]


@dataclasses.dataclass(frozen=True)
class Settings:
    """Of every run; momentum and batch are those of the examples in docs/guides/penalties.md."""

    width: int = 8
    epochs: int = 15
    rates: tuple[float, ...] = (0.1, 0.01)  # that of those examples, and that of most papers
    momentum: float = 0.9
    batch: int = 64


@dataclasses.dataclass(frozen=True)
class Method:
    """What is added to the loss, or put around the optimizer."""

    penalty: Callable[[nn.Module, torch.Generator], Penalty] | None = None
    wrap: Callable[[torch.optim.Optimizer], sl.SAM | sl.ASAM] | None = None


METHODS = {
    "plain": Method(),
    "FlatnessPenalty(weight=0.01, every=8)": Method(
        lambda model, random: sl.FlatnessPenalty(model, weight=0.01, every=8, generator=random)
    ),
    'HeadPenalty(weight=0.01, kind="kappa")': Method(
        lambda model, random: sl.HeadPenalty(model, weight=0.01, kind="kappa")
    ),
    'HeadPenalty(weight=0.1, kind="kappa")': Method(
        lambda model, random: sl.HeadPenalty(model, weight=0.1, kind="kappa")
    ),
    "SAM(rho=0.05)": Method(wrap=lambda optimizer: sl.SAM(optimizer, rho=0.05)),
    "ASAM(rho=0.5, adaptive_bias=False)": Method(
        wrap=lambda optimizer: sl.ASAM(optimizer, rho=0.5, adaptive_bias=False)
    ),
}


def train(
    method: Method, data: Data, settings: Settings, *, rate: float, seed: int
) -> nn.Module | None:
    """The network after the last epoch; None if its loss became infinite or NaN."""
    model = build("resnet18", seed=seed, channels=1, width=settings.width)
    order, random = (torch.Generator().manual_seed(seed) for _ in range(2))
    sgd = torch.optim.SGD(model.parameters(), lr=rate, momentum=settings.momentum)
    sam = method.wrap(sgd) if method.wrap else None
    penalty = method.penalty(model, random) if method.penalty else None
    x, y = data
    for _ in range(settings.epochs):
        for index in torch.randperm(len(x), generator=order).split(settings.batch):
            loss = step(model, (x[index], y[index]), sgd, sam, penalty)
            if not math.isfinite(loss):
                return None
    return model.eval()


def step(
    model: nn.Module,
    batch: Data,
    sgd: torch.optim.Optimizer,
    sam: sl.SAM | sl.ASAM | None,
    penalty: Penalty | None,
) -> float:
    """One step; the loss of the batch before it, without the penalty."""
    x, y = batch
    losses = []
    for _ in range(1) if sam is None else sam.passes():
        sgd.zero_grad()
        if penalty is None:
            total = loss = F.cross_entropy(model(x), y)
        else:
            with penalty.shared_forward():
                loss = F.cross_entropy(model(x), y)
            if not bool(loss.isfinite()):
                return float(loss.detach())  # the penalty would refuse it
            total = loss + penalty(x, y, loss=loss)
        total.backward()
        losses.append(float(loss.detach()))
    (sgd if sam is None else sam).step()
    return losses[0]


def one_seed(
    seed: int, rate: float, train_data: Data, test_data: Data, settings: Settings
) -> list[Any]:
    """One row for each method."""
    rows, kept = [], {}
    for name, method in METHODS.items():
        start = time.perf_counter()
        model = train(method, train_data, settings, rate=rate, seed=seed)
        row: dict[str, Any] = {"seed": seed, "method": name, "diverged": model is None}
        row["seconds"] = time.perf_counter() - start
        if model is not None:
            kept[name] = model.double()
            row |= measured(model, as_double(train_data), as_double(test_data))
        rows.append(row)
    for name, network in equally_confident(kept, as_double(train_data)).items():
        [row] = [row for row in rows if row["method"] == name]
        report = sl.measure(network, as_double(train_data), measures=MEASURES)
        row["equal"] = {each: report[each].value for each in MEASURES}
    return rows


def measured(model: nn.Module, train_data: Data, test_data: Data) -> dict[str, Any]:
    """Loss, accuracies, norm and measures of one network."""
    (loss, accuracy), (test_loss, test_accuracy) = (
        loss_and_accuracy(model, data) for data in (train_data, test_data)
    )
    report = sl.measure(model, train_data, measures=MEASURES)
    return {
        "loss": loss,
        "accuracy": accuracy,
        "test_loss": test_loss,
        "test_accuracy": test_accuracy,
        "norm": math.sqrt(sum(float(p.detach().square().sum()) for p in model.parameters())),
        **{name: report[name].value for name in MEASURES},
        "exact": all(report[name].exact for name in MEASURES),
        "status": report["relative.kappa"].status.value,
    }


def loss_and_accuracy(model: nn.Module, data: Data) -> tuple[float, float]:
    """In eval mode."""
    with torch.no_grad():
        outputs = model(data[0])
    right = (outputs.argmax(dim=1) == data[1]).double().mean()
    return float(F.cross_entropy(outputs, data[1])), float(right)


def as_double(data: Data) -> Data:
    """Small impurities vanish in float32."""
    return data[0].double(), data[1]


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Of each method over the seeds, and against plain training, paired by seed."""
    plain = {row["seed"]: row for row in rows if row["method"] == "plain" and not row["diverged"]}
    out = {}
    for name in METHODS:
        own = [row for row in rows if row["method"] == name and not row["diverged"]]
        pairs = [(row, plain[row["seed"]]) for row in own if row["seed"] in plain]
        found: dict[str, Any] = {"n": len(own), "diverged": len(rows) // len(METHODS) - len(own)}
        if own:
            for key in ("test_accuracy", "accuracy", "loss", "norm", *MEASURES, "seconds"):
                found[key] = mean_and_interval([row[key] for row in own])
        if pairs and name != "plain":
            gaps = [row["test_accuracy"] - other["test_accuracy"] for row, other in pairs]
            found["test accuracy minus plain"] = mean_and_interval(gaps)
            found["seeds with a larger κ than plain"] = sum(
                row["relative.kappa"] > other["relative.kappa"] for row, other in pairs
            )
            found["seeds with a larger κ than plain, equal confidence"] = sum(
                row["equal"]["relative.kappa"] > other["equal"]["relative.kappa"]
                for row, other in pairs
            )
        out[name] = found
    return out


def main() -> None:
    """Run the seeds that were asked for, and write the results after each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--rates", type=float, nargs="+", default=list(Settings.rates))
    parser.add_argument("--epochs", type=int, default=Settings.epochs, help="fewer for a try")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS, help="a folder")
    asked = parser.parse_args()
    settings = Settings(epochs=asked.epochs, rates=tuple(asked.rates))
    parts: dict[str, list[dict[str, Any]]] = {f"{rate:g}": [] for rate in settings.rates}
    for rate in settings.rates:
        for seed in asked.seeds:
            start = time.perf_counter()
            found = one_seed(seed, rate, digits("train"), digits("test"), settings)
            parts[f"{rate:g}"] += found
            print(f"rate {rate:g}, seed {seed}: {time.perf_counter() - start:.0f} s", flush=True)
            write(asked.results / f"{pathlib.Path(__file__).stem}.json", parts, settings)


def write(path: pathlib.Path, parts: dict[str, list[dict[str, Any]]], settings: Settings) -> None:
    """All rows so far, by rate, and what they say."""
    result = {
        "what": (__doc__ or "").splitlines()[0],
        "settings": dataclasses.asdict(settings),
        "machine": machine(),
        "rates": {
            rate: {"summary": summary(rows), "rows": rows} for rate, rows in parts.items() if rows
        },
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(compact(result), separators=(",", ":")) + "\n"
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
