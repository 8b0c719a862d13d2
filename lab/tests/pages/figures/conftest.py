"""A population whose numbers are known: no training, every column from one seed."""

import math
import random

import pytest

from spiritlevel_lab.population.population import Population
from spiritlevel_lab.statistics import summary

MEASURES = ["relative.kappa", "norms.weight", "curvature.trace", "bound.generalization"]
OPTIMIZERS, RATES, SEEDS = ("sgd", "adam", "adamw"), (0.1, 0.03, 0.01, 0.003, 0.001), range(2)


def planted() -> Population:
    """30 runs; the trace is negative in two and missing in one, one run trained longer."""
    noise = random.Random(0)
    rows, epochs, layers = [], {}, {"relative.kappa": {}}
    settings = [(o, lr, seed) for o in OPTIMIZERS for lr in RATES for seed in SEEDS]
    for i, (optimizer, lr, seed) in enumerate(settings):
        gap = 0.05 + noise.random()
        row = {"run": f"run{i}", "status": "done", "optimizer": optimizer, "lr": lr, "seed": seed}
        row |= {"gap": gap, "test_loss": gap + 0.1, "train_loss": 0.1}
        row |= {"relative.kappa": gap * math.exp(noise.gauss(0, 0.5))}
        row |= {"norms.weight": 5 + round(noise.random(), 1), "bound.generalization": 3 * gap}
        row |= {"curvature.trace": noise.gauss(5, 1) * (-1 if i < 2 else 1)}
        if i == 7:
            del row["curvature.trace"]
        rows.append(row)
        epochs[row["run"]] = [
            {"epoch": e, "train_loss": 2 / e + noise.random(), "test_loss": 3 / e + noise.random()}
            | {"train_accuracy": noise.random(), "test_accuracy": noise.random()}
            for e in range(1, 9 if i == 3 else 6)
        ]
        layers["relative.kappa"][row["run"]] = {
            name: noise.random() for name in ("layer10", "layer2", "head")
        }
    return Population(["optimizer", "lr"], rows, MEASURES, epochs, layers)


@pytest.fixture(scope="session")
def population() -> Population:
    return planted()


@pytest.fixture(scope="session")
def statistics(population):
    return summary(
        [
            {
                "settings": {key: row[key] for key in ("optimizer", "lr", "seed")},
                "measures": {name: row[name] for name in MEASURES if name in row},
                "target": row["gap"],
                "confounders": {"norms.weight": row["norms.weight"]},
            }
            for row in population.rows
        ],
    )
