"""What FlatnessPenalty does to Tr H² in a network with max pooling and in a perceptron.

Both learn the digits of the package for eight epochs of SGD: plainly, with the penalty on every
step, and on one step in four. For each seed all methods start from the same weights and see the
same batches. Tr H² is that of the loss on all training images, by 40 random directions; beside it
its mean over ten batches, which is what the penalty sees. Writes
experiments/results/uses/penalty_pooling.json.

`python experiments/uses/penalty_pooling.py`
"""

from __future__ import annotations

import json
import math
import pathlib
from typing import Any

import torch
from summaries import compact, machine, mean_and_interval
from torch import Tensor, nn
from torch.nn import functional as F

import spiritlevel as sl
from spiritlevel.inputs import digits

RESULTS = pathlib.Path(__file__).parents[1] / "results" / "uses"
METHODS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "every=1": {"weight": 0.01, "every": 1},
    "every=4": {"weight": 0.01, "every": 4},
}
SEEDS, EPOCHS, BATCH, RATE = range(6), 8, 64, 0.05


def network(kind: str) -> nn.Module:
    """Two convolutions with ReLU and max pooling, or one hidden layer."""
    if kind == "perceptron":
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    first, second = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3)
    pool = nn.MaxPool2d(2)
    return nn.Sequential(
        *(first, nn.ReLU(), pool, second, nn.ReLU(), pool, nn.Flatten(), nn.LazyLinear(10))
    )


def trace_squared(model: nn.Module, x: Tensor, y: Tensor, directions: int) -> float:
    """Tr H² of the mean loss, by double backward."""
    parameters = list(model.parameters())
    loss = F.cross_entropy(model(x), y)
    gradients = torch.autograd.grad(loss, parameters, create_graph=True)
    random, total = torch.Generator().manual_seed(5), 0.0
    for _ in range(directions):
        v = [torch.randint(0, 2, p.shape, generator=random) * 2.0 - 1 for p in parameters]
        products = torch.autograd.grad(gradients, parameters, v, retain_graph=True)
        total += sum(float(each.square().sum()) for each in products)
    return total / directions


def run(kind: str, method: str, seed: int, x: Tensor, y: Tensor) -> dict[str, Any]:
    """Train one network and measure it."""
    torch.manual_seed(seed)
    model = network(kind)
    model(x[:2])  # the last layer finds its size
    torch.manual_seed(seed + 100)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    options = METHODS[method]
    penalty = None if options is None else sl.FlatnessPenalty(model, **options)
    order = torch.Generator().manual_seed(seed)
    for _ in range(EPOCHS):
        for index in torch.randperm(len(x), generator=order).split(BATCH):
            if len(index) < BATCH:
                continue
            optimizer.zero_grad()
            if penalty is None:
                total = F.cross_entropy(model(x[index]), y[index])
            else:
                with penalty.shared_forward():
                    loss = F.cross_entropy(model(x[index]), y[index])
                total = loss + penalty(x[index], y[index], loss=loss)
            total.backward()
            optimizer.step()
    batches = torch.randperm(len(x), generator=torch.Generator().manual_seed(9)).split(BATCH)[:10]
    with torch.no_grad():
        loss = F.cross_entropy(model(x), y)
    return {
        "network": kind,
        "method": method,
        "seed": seed,
        "loss": float(loss),
        "trace_squared": trace_squared(model, x, y, 40),
        "of batches": sum(trace_squared(model, x[i], y[i], 10) for i in batches) / len(batches),
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Logarithms of the quotients with plain training and between the two schedules, by seed."""
    at = {(row["network"], row["method"], row["seed"]): row["trace_squared"] for row in rows}
    found: dict[str, Any] = {}
    for kind in dict.fromkeys(row["network"] for row in rows):
        for above, below in (("every=1", "plain"), ("every=4", "plain"), ("every=4", "every=1")):
            logs = [math.log(at[kind, above, s] / at[kind, below, s]) for s in SEEDS]
            found[f"{kind}: {above} over {below}"] = mean_and_interval(logs) | {
                "fell in": sum(each < 0 for each in logs)
            }
    return found


def main() -> None:
    """Run all seeds, and write the results."""
    x, y = digits("train")
    x = ((x - x.mean()) / x.std()).view(-1, 1, 8, 8)
    kinds = ("max pooling", "perceptron")
    rows = [run(kind, name, seed, x, y) for kind in kinds for seed in SEEDS for name in METHODS]
    result = {"machine": machine(), "rows": rows, "summary": summary(rows)}
    path = RESULTS / "penalty_pooling.json"
    path.write_text(json.dumps(compact(result), indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
