"""Deleting channels by curvature against magnitude, diagonal Fisher and random, at equal shares.

For every network: sl.pruning on 1,000 training images without the first layer, units chosen by
each rule, the network without them on the test set at once and after a short fine-tune in which
they stay away. Writes experiments/results/uses/pruning.json.

`python experiments/uses/pruning.py --mnist FOLDER --cifar PATH --out FOLDER`
"""

from __future__ import annotations

import json
import pathlib
import time
from typing import Any

import torch
from networks import Data, Trained, accuracy, load_data, mean_loss, parser, trained
from summaries import compact, machine, mean_and_interval, spearman
from torch import Tensor, nn
from torch.nn import functional as F

import spiritlevel as sl

RULES = ("joint", "curvature", "rise", "fisher", "magnitude", "random")
SHARES = (0.3, 0.5, 0.7)
KEYS = ("test_accuracy", "tuned_accuracy", "actual", "rise")
SAMPLES = 1000
STEPS = 100  # of the fine-tune, with 64 images each


def one_network(subject: Trained) -> dict[str, Any]:
    """Every rule and share on one network, and every unit deleted alone."""
    model, x, y = subject.model, *subject.train
    few = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:SAMPLES].to(x.device)
    data = x[few], y[few]
    names = [name for name, p in model.named_parameters() if p.dim() > 1]
    layers = [name.rpartition(".")[0] for name in names[1:]]  # not the pixels
    start = time.perf_counter()
    found = sl.pruning(model, data, layers=layers, fisher=True, check=False)
    seconds = time.perf_counter() - start
    loss = mean_loss(model, data)
    rows = []
    rules = [rule for rule in RULES if rule != "joint" or found.gram is not None]
    for share in SHARES:
        for rule in rules:
            deletion = found.choose(share, by=rule, seed=subject.seed)
            pruned = found.apply(model, deletion)
            row = {
                "share": share,
                "rule": rule,
                "gone": deletion.share,
                "rise": deletion.rise,
                "separate_rise": deletion.separate_rise,
                "actual": mean_loss(pruned, data) - loss,
                "test_accuracy": accuracy(pruned, subject.test),
                "units": {name: len(gone) for name, gone in deletion.units.items()},
            }
            fine_tune(pruned, subject.train, found.masks(deletion), subject.seed)
            rows.append(row | {"tuned_accuracy": accuracy(pruned, subject.test)})
    return {
        "network": subject.name,
        "seed": subject.seed,
        "machine": machine(x.device),
        "training_samples": len(x),
        "seconds": seconds,
        "cost": found.cost.passes(len(data[0])),
        "loss": loss,
        "test_accuracy": accuracy(model, subject.test),
        "alone": alone(found, model, data, loss),
        "rows": rows,
    }


def alone(found: Any, model: nn.Module, data: Data, loss: float) -> dict[str, float]:
    """Rank correlations of the scores of single units with the rise of the loss, on 60 units."""
    names = [(name, j) for name, each in found.second.items() for j in range(len(each))]
    generator = torch.Generator().manual_seed(0)
    some = [names[i] for i in torch.randperm(len(names), generator=generator)[:60].tolist()]
    parameters = dict(model.named_parameters())
    rises = []
    for name, j in some:
        parameter = parameters[name]
        before = parameter.detach().clone()
        with torch.no_grad():
            parameter.masked_fill_((found.owner[name] == j).to(parameter.device), 0.0)
            rises.append(mean_loss(model, data) - loss)
            parameter.copy_(before)
    scores = {
        "rise": [float(found.rise[name][j]) for name, j in some],
        "curvature": [float(found.second[name][j]) for name, j in some],
        "fisher": [float(found.fisher[name][j]) for name, j in some],
        "magnitude": [float(found.magnitude[name][j]) for name, j in some],
    }
    return {key: spearman(values, rises) for key, values in scores.items()}


def fine_tune(model: nn.Module, data: Data, masks: dict[str, Tensor], seed: int) -> None:
    """A few steps of SGD; what is deleted stays 0."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    parameters = dict(model.named_parameters())
    model.train()
    for _ in range(STEPS):
        index = torch.randint(len(data[0]), (64,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(data[0][index]), data[1][index]).backward()
        optimizer.step()
        with torch.no_grad():
            for name, mask in masks.items():
                parameters[name].mul_(mask.to(parameters[name]))
    model.eval()


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over the seeds of each network, with 95 % intervals."""
    out: dict[str, Any] = {}
    for network in dict.fromkeys(row["network"] for row in rows):
        own = [row for row in rows if row["network"] == network]
        table = {}
        for share in SHARES:
            for rule in RULES:
                of_rule = [
                    each
                    for row in own
                    for each in row["rows"]
                    if (each["share"], each["rule"]) == (share, rule)
                ]
                if of_rule:  # too many units for their pairs: no joint rule, and no joint rise
                    keys = [key for key in KEYS if of_rule[0][key] is not None]
                    table[f"{share} {rule}"] = {
                        key: mean_and_interval([each[key] for each in of_rule]) for key in keys
                    }
        out[network] = {
            "n": len(own),
            "test_accuracy": mean_and_interval([row["test_accuracy"] for row in own]),
            "rank_correlation_with_actual_rise_of_single_units": {
                key: mean_and_interval([row["alone"][key] for row in own])
                for key in own[0]["alone"]
            },
            "shares": table,
        }
    return out


def main() -> None:
    """Measure all networks that were asked for, and write the results."""
    asked = parser(__doc__ or "").parse_args()
    path = asked.results / f"{pathlib.Path(__file__).stem}.json"
    before = json.loads(path.read_text("utf-8"))["rows"] if path.exists() else []
    rows = [row for row in before if row["network"] not in asked.networks]
    for name in asked.networks:
        data = load_data(name, asked.mnist, asked.cifar, asked.device)
        for seed in asked.seeds:
            rows.append(one_network(trained(name, seed, data, asked.out)))
            print(name, seed, f"{rows[-1]['seconds']:.1f} s", flush=True)
            write(path, rows)


def write(path: pathlib.Path, rows: list[dict[str, Any]]) -> None:
    """All rows so far, and what they say."""
    result = {
        "what": (__doc__ or "").splitlines()[0],
        "samples": SAMPLES,
        "fine_tune_steps": STEPS,
        "summary": summary(rows),
        "rows": rows,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(compact(result), separators=(",", ":")) + "\n"
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
