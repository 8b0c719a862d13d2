"""Bit widths by predicted rise against uniform widths, HAWQ-V2 and weight error, at equal bits.

For every network: sl.quantization on 1,000 training images, plans for several budgets by each
rule, and the really rounded networks on the test set. Each weight rounded alone gives predicted
against actual rises. Writes experiments/results/uses/quantization.json.

`python experiments/uses/quantization.py --mnist FOLDER --cifar PATH --out FOLDER`
"""

from __future__ import annotations

import copy
import json
import pathlib
import time
from typing import Any

import torch
from networks import Trained, accuracy, load_data, mean_loss, parser, trained
from summaries import compact, machine, mean_and_interval, spearman

import spiritlevel as sl

BITS = (2, 3, 4, 6, 8)
BUDGETS = (2.5, 3.0, 3.5, 4.0)
RULES = ("curvature", "joint", "rise", "trace", "error")
KEYS = ("test_accuracy", "test_loss", "actual", "rise", "joint_rise")
SAMPLES = 1000


def one_network(subject: Trained) -> dict[str, Any]:
    """All plans of one network, and every weight rounded alone."""
    model, x, y = subject.model, *subject.train
    few = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:SAMPLES].to(x.device)
    data = x[few], y[few]
    start = time.perf_counter()
    found = sl.quantization(model, data, bits=BITS, traces=True, check=False)
    seconds = time.perf_counter() - start
    loss = mean_loss(model, data)
    alone = []
    for width in found.widths:
        rounded = _rounded_alone(found, model, width.weight, width.bits)
        actual = mean_loss(rounded, data) - loss
        alone.append(
            {
                "weight": width.weight,
                "bits": width.bits,
                "rise": width.rise,
                "data_stderr": width.data_stderr,
                "curvature": width.second / 2,
                "trace_rule": found.traces[width.weight]
                / found.sizes[width.weight]
                * width.error
                / 2,
                "error": width.error,
                "actual": actual,
            }
        )
    plans = []
    rules = [rule for rule in RULES if rule != "joint" or found.gram is not None]
    for budget in BUDGETS:
        chosen = {rule: found.plan(mean_bits=budget, by=rule) for rule in rules}
        if budget in BITS:
            chosen["uniform"] = found.uniform(int(budget))
        for rule, plan in chosen.items():
            rounded = found.apply(model, plan)
            plans.append(
                {
                    "budget": budget,
                    "rule": rule,
                    "mean_bits": plan.mean_bits,
                    "bytes": plan.bytes,
                    "rise": plan.rise,
                    "joint_rise": plan.joint_rise,
                    "actual": mean_loss(rounded, data) - loss,
                    "test_loss": mean_loss(rounded, subject.test),
                    "test_accuracy": accuracy(rounded, subject.test),
                    "bits": list(plan.bits.values()),
                }
            )
    return {
        "network": subject.name,
        "seed": subject.seed,
        "machine": machine(x.device),
        "training_samples": len(x),
        "seconds": seconds,
        "cost": found.cost.passes(len(data[0])),
        "loss": loss,
        "test_loss": mean_loss(model, subject.test),
        "test_accuracy": accuracy(model, subject.test),
        "alone": alone,
        "plans": plans,
    }


def _rounded_alone(found: Any, model: Any, name: str, bits: int) -> Any:
    rounded = copy.deepcopy(model)
    parameter = dict(rounded.named_parameters())[name]
    with torch.no_grad():
        parameter.copy_(found.round(name, parameter.detach(), bits))
    return rounded


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over the seeds of each network, with 95 % intervals."""
    out: dict[str, Any] = {}
    for network in dict.fromkeys(row["network"] for row in rows):
        own = [row for row in rows if row["network"] == network]
        ranks = {
            key: mean_and_interval(
                [spearman([a[key] for a in r["alone"]], [a["actual"] for a in r["alone"]])
                 for r in own]
            )
            for key in ("rise", "curvature", "trace_rule", "error")
        }  # fmt: skip
        table = {}
        for budget in BUDGETS:
            for rule in (*RULES, "uniform"):
                of_rule = [
                    plan
                    for row in own
                    for plan in row["plans"]
                    if (plan["budget"], plan["rule"]) == (budget, rule)
                ]
                if of_rule:  # with many outputs there is no joint rule, and no joint rise
                    keys = [key for key in KEYS if of_rule[0][key] is not None]
                    table[f"{budget} {rule}"] = {
                        key: mean_and_interval([plan[key] for plan in of_rule]) for key in keys
                    }
        out[network] = {
            "n": len(own),
            "test_accuracy": mean_and_interval([row["test_accuracy"] for row in own]),
            "rank_correlation_with_actual_rise_of_single_weights": ranks,
            "plans": table,
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
        "scheme": "per_channel, scales by squared error",
        "summary": summary(rows),
        "rows": rows,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(compact(result), separators=(",", ":")) + "\n"
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
