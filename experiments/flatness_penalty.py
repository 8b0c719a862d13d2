"""The table of "Flatness-Aware Regularization": accuracy, flatness and time for five penalties.

    python experiments/flatness_penalty.py cifar100.npz

The file holds the arrays x_train, y_train, x_test, y_test (uint8 images, fine labels). Every run is
one line of a JSONL file: a run that is there already is not repeated, so it can be stopped at any
time and started again. What differs from the paper stands in SETTINGS and in the page it writes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import pathlib
import statistics
import time
from typing import Any

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor

import spiritlevel as sl
from spiritlevel.math.student import t_quantile
from spiritlevel.models import mlp

RESULTS = pathlib.Path(__file__).parent / "results"
WEIGHTS = (0.0, 0.001, 0.01, 0.1, 1.0)
SETTINGS = {
    "hidden": 512,
    "batch": 128,
    "epochs": 5,
    "lr": 0.01,
    "momentum": 0.9,
    "clip": 1.0,  # largest norm of a step's gradient, for every weight alike
    "probes": 1,
    "every": 1,
}
PAPER = {  # final accuracy, best accuracy, average flatness, seconds
    0.0: (0.2633, 0.2800, 0.0, 60.85),
    0.001: (0.2633, 0.2833, 23.050173, 2290.77),
    0.01: (0.2700, 0.2783, 10.739012, 2433.53),
    0.1: (0.2667, 0.2967, 4.144254, 2203.87),
    1.0: (0.2583, 0.2983, 1.549933, 2337.86),
}


def load(path: str) -> dict[str, Tensor]:
    """Images from 0 to 1 and labels."""
    with numpy.load(path) as raw:
        found = {name: torch.from_numpy(raw[name]) for name in raw.files}
    for split in ("train", "test"):
        found[f"x_{split}"] = found[f"x_{split}"].flatten(1).float() / 255
        found[f"y_{split}"] = found[f"y_{split}"].long()
    return found


def train(data: dict[str, Tensor], weight: float, seed: int) -> dict[str, Any]:
    """One network; the seed settles initial weights, batches and probes, whatever the weight."""
    torch.manual_seed(seed)
    model = mlp(3072, hidden=(int(SETTINGS["hidden"]),), outputs=100)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=SETTINGS["lr"], momentum=SETTINGS["momentum"]
    )
    generator = torch.Generator().manual_seed(seed)
    penalty = sl.FlatnessPenalty(
        model,
        weight=weight,
        probes=int(SETTINGS["probes"]),
        every=int(SETTINGS["every"]),
        generator=torch.Generator().manual_seed(seed),
    )
    x, y = data["x_train"], data["y_train"]
    flatness, accuracies, seconds = [], [], 0.0
    for _ in range(int(SETTINGS["epochs"])):
        for part in torch.randperm(len(x), generator=generator).split(int(SETTINGS["batch"])):
            due, started = penalty.due, time.perf_counter()
            optimizer.zero_grad()
            with penalty.shared_forward():
                loss = F.cross_entropy(model(x[part]), y[part])
            between = time.perf_counter()
            term = penalty.of(loss, len(part))
            # without a penalty its value is only looked at, and that is no part of the training
            idle = time.perf_counter() - between if weight == 0.0 else 0.0
            (loss + term).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), SETTINGS["clip"])
            optimizer.step()
            seconds += time.perf_counter() - started - idle
            if due and penalty.value is not None:
                flatness.append(float(penalty.value))
        with torch.no_grad():
            right = model(data["x_test"]).argmax(dim=1) == data["y_test"]
        accuracies.append(float(right.float().mean()))
    return {
        "weight": weight,
        "seed": seed,
        "final": accuracies[-1],
        "best": max(accuracies),
        "flatness": statistics.fmean(flatness),
        "last_flatness": statistics.fmean(flatness[-len(flatness) // int(SETTINGS["epochs"]) :]),
        "seconds": seconds,
        "settings": SETTINGS,
    }


def interval(values: list[float]) -> str:
    """Mean with the half-width of its 95 % interval."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return f"{mean:.4g}"
    half = t_quantile(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:.4g} ± {half:.2g}"


def page(rows: list[dict[str, Any]], origin: str) -> str:
    """The table beside the paper's, and what it shows."""
    lines = [
        "# Flatness-aware regularization: the table of the paper, and ours",
        "",
        f"{origin}, values from 0 to 1. MLP 3072–{SETTINGS['hidden']}–100, SGD with momentum",
        f"{SETTINGS['momentum']}, learning rate {SETTINGS['lr']}, gradients clipped to norm",
        f"{SETTINGS['clip']:g}, batch {SETTINGS['batch']}, {SETTINGS['epochs']} epochs,",
        f"{SETTINGS['probes']} probe at one step in {SETTINGS['every']} (the paper gives neither",
        "optimizer nor epochs nor probes; its test set is 600 images by its digits). Ours:",
        "mean ± 95 % interval over seeds; flatness is the mean of Tr(H²)/B over the steps that",
        "computed it, also for λ = 0, where the paper has 0 because it computed none.",
        "",
        "| λ | n | final accuracy | paper | best accuracy | paper | average flatness | paper "
        "| time over λ = 0 | paper |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    means = {}
    for weight in WEIGHTS:
        found = [row for row in rows if row["weight"] == weight]
        if not found:
            continue
        plain = [row["seconds"] for row in rows if row["weight"] == 0.0]
        means[weight] = statistics.fmean(row["flatness"] for row in found)
        ratio = statistics.median(row["seconds"] for row in found) / statistics.median(plain)
        final, best, flat, seconds = PAPER[weight]
        cells = [
            f"{weight:g}",
            str(len(found)),
            interval([row["final"] for row in found]),
            f"{final:.4f}",
            interval([row["best"] for row in found]),
            f"{best:.4f}",
            interval([row["flatness"] for row in found]),
            f"{flat:.4g}",
            f"{ratio:.2f}",
            f"{seconds / PAPER[0.0][3]:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    ordered = list(means.values())
    falls = all(a > b for a, b in itertools.pairwise(ordered))
    verdict = "falls with λ throughout" if falls else "does NOT fall with λ throughout"
    lines += ["", f"Average Tr(H²)/B {verdict}.", ""]
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="an .npz file with x_train, y_train, x_test, y_test")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--origin", default="CIFAR-100", help="what the file holds, for the page")
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "flatness_penalty.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    data = load(arguments.data)
    for seed in range(arguments.seeds):
        for weight in WEIGHTS:
            if any((row["weight"], row["seed"]) == (weight, seed) for row in rows):
                continue
            rows.append(train(data, weight, seed))
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(rows[-1]) + "\n")
            shown = {k: v for k, v in rows[-1].items() if k != "settings"}
            print(json.dumps(shown), flush=True)
    text = page(rows, f"{arguments.origin}, {len(data['x_train'])} training images")
    (arguments.out / "flatness_penalty.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
