"""Small trained networks as files, and what a user says of them, for tests of given networks."""

import copy
import csv
import functools

import torch
from torch import nn
from torch.nn import functional as F

from spiritlevel.inputs.data import digits
from spiritlevel.inputs.models import build

RATES, SIZES, SEEDS = (0.1, 1.0), (10, 40), 2


def trained(lr, size, seed):
    """A few steps of SGD on 80 digits, in float64; a copy of one's own."""
    return copy.deepcopy(_trained(lr, size, seed))


@functools.cache
def _trained(lr, size, seed):
    x, y = digits("train")
    model = build("mlp", seed=seed, hidden=6).double()
    optimizer = torch.optim.SGD(model.parameters(), lr)
    order = torch.Generator().manual_seed(seed)
    for index in torch.randperm(80, generator=order).split(size):
        optimizer.zero_grad()
        F.cross_entropy(model(x[index].double()), y[index]).backward()
        optimizer.step()
    return model.eval()


def networks():
    """By file name: the module, and its row of a table."""
    found = {}
    for lr in RATES:
        for size in SIZES:
            for seed in range(SEEDS):
                name = f"lr{lr}_bs{size}_seed{seed}.pt"
                row = {"checkpoint": name, "lr": lr, "batch_size": size, "seed": seed}
                # Any number that differs between networks serves as an outcome.
                found[name] = trained(lr, size, seed), row | {"accuracy": 0.5 + len(found) / 64}
    return found


def write(folder, found=None):
    """The networks as files beside a table of them; the table's path."""
    found = networks() if found is None else found
    folder.mkdir(exist_ok=True)
    for name, (model, _) in found.items():
        torch.save(model.state_dict(), folder / name)
    rows = [row for _, row in found.values()]
    write_table(folder / "runs.csv", rows)
    return folder / "runs.csv"


def write_table(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def small() -> nn.Module:
    """What the files are of."""
    return build("mlp", seed=0, hidden=6)
