"""Deleting channels by curvature against magnitude, diagonal Fisher and random, at equal shares.

For every network: sl.pruning on 1,000 training images without the first layer, or on 1,000 pieces
of text without the embeddings; units chosen by each rule, the network without them on the test set
at once and after a short fine-tune in which they stay away. Writes
experiments/results/uses/pruning.json.

`python experiments/uses/pruning.py --mnist FOLDER --cifar PATH --out FOLDER`
"""

from __future__ import annotations

import json
import math
import pathlib
import time
from typing import Any

import torch
from networks import KINDS, Data, Trained, accuracy, load_data, mean_loss, parser, trained
from summaries import compact, machine, mean_and_interval, spearman
from torch import Tensor, nn
from torch.nn import functional as F

import spiritlevel as sl

RULES = ("joint", "curvature", "rise", "fisher", "magnitude", "random")
SHARES = (0.3, 0.5, 0.7)
KEYS = (
    *("test_accuracy", "tuned_accuracy", "test_loss", "tuned_loss"),
    *("test_perplexity", "tuned_perplexity", "actual", "rise", "stderr"),
)
SAMPLES = 1000
PROBES = 32  # where outputs are many: half of them choose, so 16,000 draws for 7,104 units
STEPS = 100  # of the fine-tune, with 64 samples each
SGD_RATE, ADAM_RATE = 0.01, 3e-4  # of the fine-tune, which uses what the network was trained with


def one_network(subject: Trained) -> dict[str, Any]:
    """Every rule and share on one network, and every unit deleted alone."""
    model, x, y = subject.model, *subject.train
    few = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:SAMPLES].to(x.device)
    data = x[few], y[few]
    layers = layers_of(model)
    start = time.perf_counter()
    found = sl.pruning(model, data, layers=layers, fisher=True, check=False, num_probes=PROBES)
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
                "stderr": deletion.stderr,
                "actual": mean_loss(pruned, data) - loss,
                **on_test(pruned, subject, "test"),
                "units": {name: len(gone) for name, gone in deletion.units.items()},
            }
            fine_tune(pruned, subject, found.masks(deletion))
            rows.append(row | on_test(pruned, subject, "tuned"))
    return {
        "network": subject.name,
        "seed": subject.seed,
        "machine": machine(x.device),
        "training_samples": len(x),
        "seconds": seconds,
        "cost": found.cost.passes(len(data[0])),
        "loss": loss,
        **on_test(model, subject, "test"),
        "num_probes": found.settings["num_probes"],
        "relative_error": relative_error(found),
        "alone": alone(found, model, data, loss),
        "rows": rows,
    }


def layers_of(model: nn.Module) -> list[str]:
    """The layers whose inputs may go: not pixels, and not the numbers of tokens."""
    matrices = [name for name, p in model.named_parameters() if p.dim() > 1]
    layers = [name.rpartition(".")[0] for name in matrices]
    modules = dict(model.named_modules())
    tables = [name for name in layers if isinstance(modules[name], nn.Embedding)]
    return [name for name in layers if name not in tables] if tables else layers[1:]


def on_test(model: nn.Module, subject: Trained, when: str) -> dict[str, float]:
    """Accuracy and loss on the test set; of a language model also the perplexity."""
    loss = mean_loss(model, subject.test)
    found = {f"{when}_accuracy": accuracy(model, subject.test), f"{when}_loss": loss}
    if subject.name == "language":
        found[f"{when}_perplexity"] = math.exp(min(loss, 700.0))
    return found


def relative_error(found: Any) -> float | None:
    """The error of ρ(j) from the probes, for the median unit; None without probes."""
    if not found.settings["num_probes"]:
        return None
    ratios = torch.cat([found.stderr[name] / each for name, each in found.second.items()])
    return float(ratios.nanmedian())


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


def fine_tune(model: nn.Module, subject: Trained, masks: dict[str, Tensor]) -> None:
    """A few steps; what is deleted stays 0."""
    data = subject.train
    generator = torch.Generator().manual_seed(subject.seed)
    if KINDS[subject.name].adam:
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=ADAM_RATE)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=SGD_RATE, momentum=0.9)
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
                    keys = [k for k in KEYS if all(each.get(k) is not None for each in of_rule)]
                    table[f"{share} {rule}"] = {
                        key: mean_and_interval([each[key] for each in of_rule]) for key in keys
                    }
        whole = [
            key for key in (*KEYS, "relative_error") if all(row.get(key) is not None for row in own)
        ]
        out[network] = {
            "n": len(own),
            **{key: mean_and_interval([row[key] for row in own]) for key in whole},
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
    again = {(name, seed) for name in asked.networks for seed in asked.seeds}
    rows = [row for row in before if (row["network"], row["seed"]) not in again]
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
