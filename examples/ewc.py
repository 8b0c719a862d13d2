"""Elastic weight consolidation: learn digits with shuffled pixels without forgetting plain ones.

The penalty Σ F_i (w_i − w*_i)² keeps weights that the plain digits need; F is the diagonal of the
Fisher matrix from `sl.diagonal`. Run it with `python examples/ewc.py [SEEDS] [--plot FILE]`.
"""

from __future__ import annotations

import argparse
import copy
import math
import pathlib
import statistics

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import spiritlevel as sl
from spiritlevel.inputs import digits, mlp
from spiritlevel.pages.figures import COLOURS, MARKERS, new_figure, save

WEIGHTS = (0.0, 1.0, 10.0, 100.0, 1000.0)  # of the penalty
Data = tuple[Tensor, Tensor]


def parts(split: str) -> tuple[Data, Data]:
    """The digits as they are, and with their pixels in another order."""
    x, y = digits(split)
    order = torch.randperm(x[0].numel(), generator=torch.Generator().manual_seed(0))
    return (x, y), (x.flatten(1)[:, order].reshape(x.shape), y)


def train(model: nn.Module, data: Data, epochs: int, importance: dict[str, Tensor]) -> None:
    """Train in place; `importance` holds every weight where it is now."""
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        order = torch.randperm(len(data[0]))
        for index in order.split(64):
            loss = F.cross_entropy(model(data[0][index]), data[1][index])
            for name, parameter in model.named_parameters():
                if name in importance:
                    loss = loss + (importance[name] * (parameter - start[name]) ** 2).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def accuracy(model: nn.Module, data: Data) -> float:
    """The share of digits that are recognized."""
    with torch.no_grad():
        return float((model(data[0]).argmax(dim=1) == data[1]).double().mean())


def one_seed(seed: int) -> list[tuple[float, float]]:
    """Test accuracy on plain and shuffled digits, for each weight of the penalty."""
    torch.manual_seed(seed)
    old, new = parts("train")
    old_test, new_test = parts("test")
    model = mlp().train()
    train(model, old, 10, {})
    fisher = sl.diagonal(model.eval(), old, kind="fisher").values
    rows = []
    for weight in WEIGHTS:
        torch.manual_seed(seed)
        later = copy.deepcopy(model)
        train(later, new, 10, {name: weight * values.float() for name, values in fisher.items()})
        rows.append((accuracy(later, old_test), accuracy(later, new_test)))
    return rows


def draw(means: list[list[float]], errors: list[list[float]], seeds: int) -> bytes:
    """Both accuracies against the weight of the penalty."""
    ax = new_figure(5.2, 3.0).subplots()
    for i, label in enumerate(("plain digits (first)", "shuffled pixels (later)")):
        style = {"color": COLOURS[i], "marker": MARKERS[i], "markersize": 4, "capsize": 2}
        ax.errorbar(range(len(WEIGHTS)), means[i], errors[i], label=label, **style)
    ax.set_xticks(range(len(WEIGHTS)), [f"{weight:g}" for weight in WEIGHTS])
    ax.set_xlabel("weight of the penalty")
    ax.set_ylabel("test accuracy")
    ax.set_title(f"mean and standard error over {seeds} seeds", fontsize=8, loc="left")
    ax.legend(frameon=False)
    return save(ax.figure, "png")


def main() -> None:
    """Print the accuracies, and draw them if asked to."""
    parser = argparse.ArgumentParser()
    parser.add_argument("seeds", type=int, nargs="?", default=1)
    parser.add_argument("--plot", type=pathlib.Path)
    asked = parser.parse_args()
    rows = [one_seed(seed) for seed in range(asked.seeds)]
    means, errors = [], []
    for i in range(2):
        columns = [[row[w][i] for row in rows] for w in range(len(WEIGHTS))]
        means.append([statistics.mean(column) for column in columns])
        root = math.sqrt(asked.seeds)
        errors.append([statistics.stdev(c) / root if asked.seeds > 1 else 0.0 for c in columns])
    for w, weight in enumerate(WEIGHTS):
        old, new = (f"{means[i][w]:.3f} ± {errors[i][w]:.3f}" for i in range(2))
        print(f"weight {weight:6g}: plain {old}, shuffled {new}")
    assert max(means[0]) > means[0][0] + 0.05  # it helps against forgetting
    if asked.plot is not None:
        asked.plot.write_bytes(draw(means, errors, asked.seeds))


if __name__ == "__main__":
    main()
