"""Relative flatness while a network groks modular addition, beside one that only memorizes.

A ReLU perceptron learns a + b mod p from half of all pairs, full batch, AdamW. With weight decay it
memorizes first and generalizes much later; without, it stays with what it memorized. Along both
runs: loss, accuracies, Gini impurity of the predictions, κ of the head and of all layers; and κ
again with the logits of every memorizing network scaled until all are equally confident. With 47
classes κ is estimated by output probes, to 5 %. Writes experiments/results/uses/grokking.json.

`python experiments/uses/grokking.py`
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import math
import pathlib
import time
from typing import Any

import torch
from summaries import compact, machine, mean_and_interval, spearman
from torch import Tensor, nn
from torch.nn import functional as F

import spiritlevel as sl
from spiritlevel.pages.figures import COLOURS, GREY, log_scale, new_figure, save
from spiritlevel.verbs.comparison.measuring import equally_confident

RESULTS = pathlib.Path(__file__).parents[1] / "results" / "uses"
MEASURES = ["relative.kappa", "head.kappa", "curvature.trace", "softmax.gini"]
MEMORIZED, GENERALIZED = 0.99, 0.9  # accuracy on the training and on the test pairs
RUNS = {"decay": 1.0, "control": 0.0}  # weight decay


@dataclasses.dataclass(frozen=True)
class Size:
    """How large the task, the network and the run are."""

    p: int = 47
    width: int = 128
    steps: int = 6000
    looks: int = 24
    rate: float = 3e-3


Data = tuple[Tensor, Tensor]


def pairs(p: int, seed: int) -> tuple[Data, Data]:
    """Training and test pairs, each number as one of p inputs that is 1."""
    a, b = torch.cartesian_prod(torch.arange(p), torch.arange(p)).T
    x = torch.cat([F.one_hot(a, p), F.one_hot(b, p)], dim=1).float()
    y = (a + b) % p
    order = torch.randperm(p * p, generator=torch.Generator().manual_seed(seed))
    train, test = order.tensor_split(2)
    return (x[train], y[train]), (x[test], y[test])


def look_steps(size: Size) -> list[int]:
    """Steps to look at, closer at the beginning."""
    last = math.log(size.steps)
    spaced = {round(math.exp(last * i / (size.looks // 2))) for i in range(size.looks // 2 + 1)}
    even = {size.steps * i // (size.looks // 2) for i in range(size.looks // 2 + 1)}
    return sorted(spaced | even)


def train(
    data: tuple[Data, Data], size: Size, decay: float, seed: int
) -> list[tuple[int, nn.Module]]:
    """The network at every look."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(2 * size.p, size.width, bias=False),
        nn.ReLU(),
        nn.Linear(size.width, size.p, bias=False),
    )
    optimizer = torch.optim.AdamW(model.parameters(), size.rate, (0.9, 0.98), weight_decay=decay)
    (x, y), looks, found = data[0], set(look_steps(size)), []
    for step in range(size.steps + 1):
        if step in looks:
            found.append((step, copy.deepcopy(model).eval()))
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return found


def loss_and_accuracy(model: nn.Module, data: Data) -> tuple[float, float]:
    """On one part of the pairs."""
    with torch.no_grad():
        outputs = model(data[0])
    right = (outputs.argmax(dim=1) == data[1]).float().mean()
    return float(F.cross_entropy(outputs.double(), data[1])), float(right)


def one_seed(seed: int, size: Size) -> dict[str, Any]:
    """Both runs, and all their memorizing networks at equal confidence."""
    start = time.perf_counter()
    data = pairs(size.p, seed)
    runs: dict[str, list[dict[str, Any]]] = {}
    certain: dict[str, nn.Module] = {}
    for run, decay in RUNS.items():
        rows = []
        for step, model in train(data, size, decay, seed):
            (loss, accuracy), (test_loss, test_accuracy) = (
                loss_and_accuracy(model, part) for part in data
            )
            report = sl.measure(model.double(), as_double(data[0]), measures=MEASURES)
            row = {"step": step, "loss": loss, "accuracy": accuracy}
            row |= {"test_loss": test_loss, "test_accuracy": test_accuracy}
            row |= {name: report[name].value for name in MEASURES}
            row["exact"] = all(report[name].exact for name in MEASURES)
            row["norm"] = math.sqrt(
                sum(float(p.detach().square().sum()) for p in model.parameters())
            )
            rows.append(row)
            if accuracy >= MEMORIZED:
                certain[f"{run} {step}"] = model
        runs[run] = rows
    scaled = equally_confident(certain, as_double(data[0]))
    for run, rows in runs.items():
        for row in rows:
            network = scaled.get(f"{run} {row['step']}")
            if network is not None:
                report = sl.measure(network, as_double(data[0]), measures=MEASURES)
                row["equal"] = {name: report[name].value for name in MEASURES}
    seconds = time.perf_counter() - start
    return {"seed": seed, "seconds": seconds, "runs": runs, "times": times(runs["decay"])}


def as_double(data: Data) -> Data:
    """Small impurities vanish in float32."""
    return data[0].double(), data[1]


def times(rows: list[dict[str, Any]]) -> dict[str, float | None]:
    """When what happened, in steps between looks.

    A value that falls counts as fallen when half of its way down, in orders of magnitude, is done:
    from the look at which the training pairs are memorized to the last one.
    """
    known = [row for row in rows if row["accuracy"] >= MEMORIZED]
    found = {
        "memorized": crossing(rows, [row["accuracy"] for row in rows], MEMORIZED),
        "test_accuracy_half": crossing(rows, [row["test_accuracy"] for row in rows], 0.5),
        "generalized": crossing(rows, [row["test_accuracy"] for row in rows], GENERALIZED),
    }
    series = {"loss": [row["loss"] for row in known], "norm": [row["norm"] for row in known]}
    for name in MEASURES:
        series[name] = [row[name] for row in known]
        series[f"equal {name}"] = [row["equal"][name] for row in known]
    del series["equal softmax.gini"]  # equal by construction
    for name, values in series.items():
        logs = [-math.log(max(value, 1e-300)) for value in values]
        falls = logs[-1] > logs[0]
        found[f"{name} half"] = crossing(known, logs, (logs[0] + logs[-1]) / 2) if falls else None
    return found


def crossing(rows: list[dict[str, Any]], values: list[float], level: float) -> float | None:
    """The step at which values first reach a level, on a line between looks; None for never."""
    for i, value in enumerate(values):
        if value >= level:
            if i == 0:
                return float(rows[0]["step"])
            before = values[i - 1]
            share = (level - before) / (value - before)
            return rows[i - 1]["step"] + share * (rows[i]["step"] - rows[i - 1]["step"])
    return None


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Over the seeds, with 95 % intervals: times, the ends of both runs, and lags."""
    grokked = [row for row in rows if row["times"]["test_accuracy_half"] is not None]
    out: dict[str, Any] = {"n": len(rows), "grokked": len(grokked)}
    for key in rows[0]["times"]:
        given = [row["times"][key] for row in rows if row["times"][key] is not None]
        if given:
            out[f"step: {key}"] = mean_and_interval(given)
        fallen = [row["times"] for row in grokked if row["times"][key] is not None]
        if fallen and key.endswith(" half"):  # below 1: it falls before the test accuracy rises
            ratios = [each[key] / each["test_accuracy_half"] for each in fallen]
            out[f"share of the steps to half test accuracy: {key}"] = mean_and_interval(ratios)
    for run in RUNS:
        last = [row["runs"][run][-1] for row in rows]
        for key in ("loss", "accuracy", "test_accuracy", "norm", *MEASURES):
            out[f"last, {run}: {key}"] = mean_and_interval([each[key] for each in last])
        for key in MEASURES:
            values = [each["equal"][key] for each in last]
            out[f"last, {run}, equal confidence: {key}"] = mean_and_interval(values)
    for key in ("relative.kappa", "head.kappa"):
        for where in ("", "equal "):
            found = [
                spearman(
                    [each["equal"][key] if where else each[key] for each in known],
                    [each["test_accuracy"] for each in known],
                )
                for row in grokked
                for known in [[r for r in row["runs"]["decay"] if "equal" in r]]
            ]
            if found:
                out[f"rank correlation with test accuracy along the run: {where}{key}"] = (
                    mean_and_interval(found)
                )
            last = [[row["runs"][run][-1] for run in RUNS] for row in rows]
            logs = [
                math.log10(
                    (b["equal"][key] if where else b[key]) / (a["equal"] if where else a)[key]
                )
                for a, b in last
            ]
            out[f"orders of magnitude, control over decay: {where}{key}"] = mean_and_interval(logs)
        lowest = [
            min(r["equal"][key] for r in row["runs"]["control"] if "equal" in r) for row in rows
        ]
        out[f"lowest, control, equal confidence: {key}"] = mean_and_interval(lowest)
    return out


def draw(row: dict[str, Any]) -> bytes:
    """One seed: accuracies, κ, and κ at equal confidence; with and without weight decay."""
    figure = new_figure(9.0, 3.1)
    panels = figure.subplots(1, 3)
    for i, (run, rows) in enumerate(row["runs"].items()):
        known = [each for each in rows if "equal" in each]
        label = f"weight decay {RUNS[run]:g}"
        colour = COLOURS[i]
        steps = [each["step"] for each in rows]
        panels[0].plot(steps, [r["accuracy"] for r in rows], ":", color=colour)
        panels[0].plot(steps, [r["test_accuracy"] for r in rows], color=colour, label=label)
        panels[1].plot(steps, [r["relative.kappa"] for r in rows], color=colour)
        panels[1].plot(steps, [r["head.kappa"] for r in rows], "--", color=colour)
        panels[2].plot(
            [r["step"] for r in known], [r["equal"]["relative.kappa"] for r in known], color=colour
        )
        panels[2].plot(
            [r["step"] for r in known],
            [r["equal"]["head.kappa"] for r in known],
            "--",
            color=colour,
        )
    panels[0].legend(frameon=False, fontsize=7, loc="center right")
    titles = (
        "accuracy: test, and training (dotted)",
        "κ: all layers, and the head (dashed)",
        "the same at equal confidence",
    )
    rises = row["times"]["test_accuracy_half"]
    for ax, title in zip(panels, titles, strict=True):
        ax.set_title(title, fontsize=8.5, loc="left")
        ax.set_xlabel("step", fontsize=8)
        ax.tick_params(labelsize=7)
        if rises is not None:
            ax.axvline(rises, color=GREY, linewidth=0.8, linestyle=(0, (1, 2)))
    for ax, decades in ((panels[1], 5.0), (panels[2], 1.0)):
        log_scale(ax, "y", decades=decades)
    return save(figure, "png")


def main() -> None:
    """Run the seeds that were asked for, and write the results after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--quick", action="store_true", help="a smaller task, for a test")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS, help="a folder")
    parser.add_argument("--plot", type=pathlib.Path, help="draw the first seed, as .png")
    asked = parser.parse_args()
    size = Size(p=31, steps=900, looks=6, rate=1e-2) if asked.quick else Size()
    rows = []
    for seed in asked.seeds:
        rows.append(one_seed(seed, size))
        reached = rows[-1]["runs"]["decay"][-1]["test_accuracy"]
        print(f"seed {seed}: {rows[-1]['seconds']:.0f} s, test accuracy {reached:.3f}", flush=True)
        write(asked.results / f"{pathlib.Path(__file__).stem}.json", rows, size)
    if asked.plot is not None:
        asked.plot.write_bytes(draw(rows[0]))


def write(path: pathlib.Path, rows: list[dict[str, Any]], size: Size) -> None:
    """All rows so far, and what they say."""
    result = {
        "what": (__doc__ or "").splitlines()[0],
        "size": dataclasses.asdict(size),
        "machine": machine(),
        "summary": summary(rows),
        "rows": rows,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(compact(result), separators=(",", ":")) + "\n"
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
