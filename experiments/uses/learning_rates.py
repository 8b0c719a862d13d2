"""Learning rates against the edge of stability, and how far ahead the monitor warns.

Edge: a tanh network and the squared error, on all samples at once, with SGD and Adam at three rates
each. Images: the same for LeNet-5 on 2,000 images of CIFAR-10, and SGD also in batches of 64; a GPU
is welcome: `--device cuda`. Warnings: a ReLU network and cross-entropy, with SGD, momentum and
Adam, on all samples or in batches of 64, at rates from harmless to hopeless and at rates that rise
until training fails.
Writes experiments/results/uses/learning_rates.json, and draws the edge of a part with --picture.
Runs that are in the file already are not repeated; --merge takes them over from other files.

`python experiments/uses/learning_rates.py --seeds 0 1 2 3 4 --part edge --picture edge.png`
`python experiments/uses/learning_rates.py --seeds 0 1 2 --part images --cifar PATH`
`python experiments/uses/learning_rates.py --seeds 5 6 7 8 9 --part warnings`
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import pathlib
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from edge import EDGES, OPTIMIZERS, SAMPLES, Setting, drawn, edge_run, edge_summary, samples
from networks import RESULTS, SEEDS, load_cifar
from summaries import compact, machine, share_and_interval
from torch import Tensor, nn
from torch.nn import functional as F

import spiritlevel as sl
from spiritlevel.inputs import build

STEPS, FIRST, EVERY = 80, 10, 5  # of the runs that may fail: rows at the first steps, then fewer
GROWTH = 1.05  # of a rising rate, from step to step
LOST, BLOWN_UP = 0.9, 1.1  # shares of the loss at the start
CADENCES = ("first", 5, 20)  # all of these rows, or one every so many steps
RATES = {
    "SGD": (0.1, 0.3, 1.0, 3.0),
    "momentum": (0.03, 0.1, 0.3, 1.0),
    "Adam": (0.003, 0.01, 0.1, 0.3),
}
RISING = {"SGD": 0.1, "momentum": 0.03, "Adam": 0.01}  # where a rate that rises begins
RULES = {  # which of the two ratios, above what, in how many rows in a row
    "sharpness > 1": (1, 1.0, 1),
    "sharpness > 1.5": (1, 1.5, 1),  # the monitor's
    "sharpness > 1.5, three times": (1, 1.5, 3),
    "sharpness > 2": (1, 2.0, 1),
    "sharpness > 4": (1, 4.0, 1),
    "critical > 1.5, three times": (2, 1.5, 3),
}
FIRST_HELD_OUT = 5  # the monitor's rule was chosen on the seeds before this one


def warned_run(setting: Setting) -> dict[str, Any]:
    """Train a ReLU network, and note when each rule would have warned."""
    x, y = samples()
    model = build("mlp", seed=setting.seed, hidden=(32, 32))
    optimizer = OPTIMIZERS[setting.optimizer](model.parameters(), setting.rate)
    early, later = (
        sl.FlatnessMonitor(
            model, (x, y), measures=(), every=every, optimizer=optimizer, warn_above=None
        )
        for every in (1, EVERY)
    )
    generator = torch.Generator().manual_seed(setting.seed)
    losses = [loss_of(model, x, y)]
    for step in range(1, STEPS + 1):
        index = torch.arange(len(x))
        if setting.batch is not None:
            index = torch.randint(len(x), (setting.batch,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(x[index]), y[index]).backward()
        optimizer.step()
        (early if step <= FIRST else later).step(step)
        losses.append(loss_of(model, x, y))
        if setting.rising:
            for group in optimizer.param_groups:
                group["lr"] *= GROWTH
        if not math.isfinite(losses[-1]):
            break
    lost = not sum(losses[-10:]) / 10 < LOST * losses[0]
    above = [i for i, loss in enumerate(losses) if not loss <= BLOWN_UP * losses[0]]
    ratios = [ratios_of(row) for row in early.rows + later.rows]
    return dataclasses.asdict(setting) | {
        "lost": lost,
        "blown_up": above[0] if above else None,  # the step, also of runs that recover
        "last_loss": losses[-1],
        "ratios": ratios,
    }


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """The mean cross-entropy on all samples."""
    with torch.no_grad():
        return float(F.cross_entropy(model(x), y))


def ratios_of(row: dict[str, Any]) -> list[float | None]:
    """The step, sharpness over threshold, and the step's length over its critical length.

    None where there is none: while Adam settles, and where a measurement failed.
    """
    sharpness = critical = None
    if row["status"] == "ok" and row.get("rate.sharpness.status") != "settling":
        sharpness = row["rate.sharpness"] / row["rate.threshold"]
    if row.get("rate.critical_sharpness") is not None:
        critical = row["rate.critical_sharpness"] * row["rate.learning_rate"] / 2
    elif row.get("rate.critical_sharpness.status") == "uphill":
        critical = 1e9
    return [row["step"], *(None if r is None else float(f"{r:.3g}") for r in (sharpness, critical))]


def first_warning(run: dict[str, Any], rule: str, cadence: str | int) -> int | None:
    """The step after which a rule warns first, with rows of that cadence."""
    which, level, needed = RULES[rule]
    above = 0
    for row in run["ratios"]:
        if cadence == "first" or row[0] % cadence == 0:
            above = above + 1 if row[which] is not None and row[which] > level else 0
            if above >= needed:
                return int(row[0])
    return None


def settings(seeds: Iterable[int]) -> list[Setting]:
    """All runs of the second part."""
    runs = []
    for seed in seeds:
        for name, rates in RATES.items():
            for batch in (None, 64):
                runs += [Setting(name, rate, seed, batch) for rate in rates]
                runs.append(Setting(name, RISING[name], seed, batch, rising=True))
    return runs


def warning_summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Of the runs that are lost, how many are warned before; of the others, how many at all."""
    out: dict[str, Any] = {}
    for name in (*RATES, "all"):
        own = [run for run in runs if name in (run["optimizer"], "all")]
        lost = [run for run in own if run["lost"]]
        kept = [run for run in own if not run["lost"]]
        table = {}
        for rule in RULES:
            for cadence in CADENCES:
                steps = [first_warning(run, rule, cadence) for run in lost]
                pairs = [
                    (run["blown_up"] or STEPS, step) for run, step in zip(lost, steps, strict=True)
                ]
                ahead = [end - step for end, step in pairs if step is not None and step < end]
                alarms = [run for run in kept if first_warning(run, rule, cadence) is not None]
                table[f"{rule}, {cadence}"] = {
                    "warned_before": share_and_interval(len(ahead), len(lost)),
                    "warned_at_all": sum(step is not None for step in steps),
                    "steps_ahead": sorted(ahead),
                    "false_alarms": share_and_interval(len(alarms), len(kept)),
                    "false_alarms_that_rose": sum(run["blown_up"] is not None for run in alarms),
                }
        out[name] = {"lost": len(lost), "kept": len(kept), "rules": table}
    return out


def main() -> None:
    """Train all runs, and write what came out after each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS, help="a folder")
    parser.add_argument("--picture", type=pathlib.Path, help="draw the edge to this file")
    parser.add_argument("--part", choices=(*EDGES, "warnings"), help="only one of the three")
    parser.add_argument("--cifar", type=pathlib.Path, help="archive, folder of its files, or .npz")
    parser.add_argument("--device", default="cpu", help="for the images")
    parser.add_argument("--optimizers", nargs="+", choices=list(OPTIMIZERS), help="of an edge")
    parser.add_argument("--merge", type=pathlib.Path, nargs="+", help="files; nothing is trained")
    asked = parser.parse_args()
    if asked.picture is not None and asked.part == "warnings":
        parser.error("--picture draws an edge: give --part edge or images")
    warnings.simplefilter("ignore", RuntimeWarning)
    path = asked.results / f"{pathlib.Path(__file__).stem}.json"
    names = (*EDGES, "warnings")
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    host: dict[str, str] = {}
    for file in [*([path] if path.exists() else []), *(asked.merge or [])]:
        recorded = json.loads(file.read_text("utf-8"))
        host = host or recorded.get("machine", {})
        for name in names:
            known = {key_of(each) for each in runs[name]}
            more = recorded.get(f"{name}_runs", [])
            runs[name] += [each for each in more if key_of(each) not in known]
    host = host or machine()  # of the parts that need no GPU
    # without --part, images are trained on if they are there
    parts = [
        n for n in names if n == asked.part or (not asked.part and (n != "images" or asked.cifar))
    ]
    for name in [] if asked.merge else parts:
        planned, run = planned_runs(name, asked)
        known = {key_of(each) for each in runs[name]}
        for i, setting in enumerate(planned, start=1):
            if key_of(dataclasses.asdict(setting)) not in known:
                start = time.perf_counter()
                runs[name].append(run(setting))
                print(
                    f"{i}/{len(planned)} {setting} {time.perf_counter() - start:.1f} s", flush=True
                )
                write(path, runs, host)  # a run that is interrupted goes on from here
    write(path, runs, host)
    if asked.picture is not None:
        part = asked.part or "edge"
        asked.picture.write_bytes(drawn(runs[part], EDGES[part], asked.picture.suffix[1:]))
    print(path)


def planned_runs(
    name: str, asked: argparse.Namespace
) -> tuple[list[Setting], Callable[[Setting], dict[str, Any]]]:
    """The runs of a part, and what makes one of them."""
    if name == "warnings":
        return settings(asked.seeds), warned_run
    edge, data = EDGES[name], samples()
    if name == "images":
        torch.backends.cudnn.allow_tf32 = False  # as everywhere else: edges are fine lines
        (x, y), _ = load_cifar(asked.cifar, "LeNet-5", asked.device)
        data = x[: edge.samples], y[: edge.samples]
    planned = edge.settings(asked.seeds, asked.optimizers or OPTIMIZERS)
    return planned, functools.partial(edge_run, edge=edge, data=data)


def key_of(run: dict[str, Any]) -> tuple[Any, ...]:
    """What makes a run this one."""
    return tuple(run[field.name] for field in dataclasses.fields(Setting))


def write(path: pathlib.Path, runs: dict[str, list[dict[str, Any]]], host: dict[str, str]) -> None:
    """All runs so far, and what they say."""
    warned = runs["warnings"]
    result = {
        "what": (__doc__ or "").splitlines()[0],
        "samples": {name: edge.samples for name, edge in EDGES.items()} | {"warnings": SAMPLES},
        "steps": {name: edge.steps for name, edge in EDGES.items()} | {"warnings": STEPS},
        "machine": host,
        **{name: edge_summary(runs[name], edge) for name, edge in EDGES.items()},
        "warnings": {
            "chosen_on": warning_summary([r for r in warned if r["seed"] < FIRST_HELD_OUT]),
            "held_out": warning_summary([r for r in warned if r["seed"] >= FIRST_HELD_OUT]),
        },
        **{f"{name}_runs": each for name, each in runs.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(compact(result), separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
