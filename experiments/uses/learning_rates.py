"""Learning rates against the edge of stability, and how far ahead the monitor warns.

Edge: a tanh network and the squared error, on all samples at once, with SGD and Adam at three rates
each. Warnings: a ReLU network and cross-entropy, with SGD, momentum and Adam, on all samples or in
batches of 64, at rates from harmless to hopeless and at rates that rise until training fails.
Writes experiments/results/uses/learning_rates.json, and draws the edge with --picture.

`python experiments/uses/learning_rates.py --seeds 0 1 2 3 4 --picture edge.png`
`python experiments/uses/learning_rates.py --seeds 5 6 7 8 9 --part warnings`
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pathlib
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from networks import RESULTS, SEEDS
from summaries import compact, machine, mean_and_interval, share_and_interval
from torch import Tensor, nn
from torch.nn import functional as F

import spiritlevel as sl
from spiritlevel.pages import figures
from spiritlevel.study.data import digits
from spiritlevel.study.models import build

SAMPLES = 500
EDGE_STEPS, EDGE_EVERY = 1500, 50
STEPS, FIRST, EVERY = 80, 10, 5  # of the runs that may fail: rows at the first steps, then fewer
GROWTH = 1.05  # of a rising rate, from step to step
LOST, BLOWN_UP = 0.9, 1.1  # shares of the loss at the start
CADENCES = ("first", 5, 20)  # all of these rows, or one every so many steps
OPTIMIZERS: dict[str, Callable[[Iterable[Tensor], float], torch.optim.Optimizer]] = {
    "SGD": lambda p, rate: torch.optim.SGD(p, rate),
    "momentum": lambda p, rate: torch.optim.SGD(p, rate, momentum=0.9),
    "Adam": lambda p, rate: torch.optim.Adam(p, rate),
}
EDGE_RATES = {"SGD": (0.5, 1.0, 2.0), "Adam": (0.003, 0.01, 0.03)}
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


@dataclasses.dataclass(frozen=True)
class Setting:
    """One training run."""

    optimizer: str
    rate: float
    seed: int
    batch: int | None = None  # None for all samples
    rising: bool = False


def samples() -> tuple[Tensor, Tensor]:
    """Some digits, centred and scaled."""
    x, y = digits("train")
    x = (x - x.mean()) / x.std()
    return x[:SAMPLES], y[:SAMPLES]


def edge_run(setting: Setting) -> dict[str, Any]:
    """Sharpness and threshold while a small tanh network fits the digits."""
    x, y = samples()
    targets = F.one_hot(y, 10).float()
    model = build("mlp", seed=setting.seed, hidden=(32, 32), activation="tanh")
    optimizer = OPTIMIZERS[setting.optimizer](model.parameters(), setting.rate)
    monitor = sl.FlatnessMonitor(
        model,
        (x, targets),
        measures=(),
        every=EDGE_EVERY,
        optimizer=optimizer,
        rates="sharpness",
        warn_above=None,
        loss="mse",
        strict=True,
    )
    losses = []
    for _ in range(EDGE_STEPS):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), targets)
        loss.backward()
        optimizer.step()
        if monitor.step():
            losses.append(loss.item())
    return dataclasses.asdict(setting) | {
        "step": [row["step"] for row in monitor.rows],
        "sharpness": [row["rate.sharpness"] for row in monitor.rows],
        "threshold": monitor.rows[-1]["rate.threshold"],
        "loss": losses,
    }


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


def edge_summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Sharpness over threshold at the start and in the last fifth, over the seeds."""
    out = {}
    for name, rates in EDGE_RATES.items():
        for rate in rates:
            own = [r for r in runs if (r["optimizer"], r["rate"]) == (name, rate)]
            if not own:
                continue
            ratios = [[s / r["threshold"] for s in r["sharpness"]] for r in own]
            fifth = len(ratios[0]) // 5
            out[f"{name} {rate}"] = {
                "threshold": own[0]["threshold"],
                "first": mean_and_interval([each[0] for each in ratios]),
                "last_fifth": mean_and_interval([sum(each[-fifth:]) / fifth for each in ratios]),
                "largest": mean_and_interval([max(each) for each in ratios]),
            }
    return out


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
    parser.add_argument("--part", choices=("edge", "warnings"), help="only one of the two")
    asked = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)
    path = asked.results / f"{pathlib.Path(__file__).stem}.json"
    before = json.loads(path.read_text("utf-8")) if path.exists() else {}
    edges = [
        Setting(name, rate, seed)
        for seed in asked.seeds
        for name, rates in EDGE_RATES.items()
        for rate in rates
    ]
    parts = {"edge": (edges, edge_run), "warnings": (settings(asked.seeds), warned_run)}
    runs = {name: before.get(f"{name}_runs", []) for name in parts}
    for name in parts if asked.part is None else [asked.part]:
        planned, run = parts[name]
        known = {key_of(each) for each in runs[name]}
        for i, setting in enumerate(planned, start=1):
            if key_of(dataclasses.asdict(setting)) not in known:
                start = time.perf_counter()
                runs[name].append(run(setting))
                print(
                    f"{i}/{len(planned)} {setting} {time.perf_counter() - start:.1f} s", flush=True
                )
                write(path, runs)  # a run that is interrupted goes on from here
    write(path, runs)
    if asked.picture is not None:
        asked.picture.write_bytes(drawn(runs["edge"], asked.picture.suffix[1:]))
    print(path)


def key_of(run: dict[str, Any]) -> tuple[Any, ...]:
    """What makes a run this one."""
    return tuple(run[field.name] for field in dataclasses.fields(Setting))


def write(path: pathlib.Path, runs: dict[str, list[dict[str, Any]]]) -> None:
    """All runs so far, and what they say."""
    warned = runs["warnings"]
    result = {
        "what": (__doc__ or "").splitlines()[0],
        "samples": SAMPLES,
        "steps": {"edge": EDGE_STEPS, "warnings": STEPS},
        "machine": machine(),
        "edge": edge_summary(runs["edge"]),
        "warnings": {
            "chosen_on": warning_summary([r for r in warned if r["seed"] < FIRST_HELD_OUT]),
            "held_out": warning_summary([r for r in warned if r["seed"] >= FIRST_HELD_OUT]),
        },
        "edge_runs": runs["edge"],
        "warnings_runs": runs["warnings"],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(compact(result), separators=(",", ":")) + "\n", encoding="utf-8")


def drawn(runs: list[dict[str, Any]], kind: str) -> bytes:
    """Sharpness over its threshold, one panel per optimizer, one line per run."""
    figure = figures.new_figure(8.2, 3.0)
    for ax, (name, rates) in zip(
        figure.subplots(1, 2, sharey=True), EDGE_RATES.items(), strict=True
    ):
        for i, rate in enumerate(rates):
            own = [r for r in runs if (r["optimizer"], r["rate"]) == (name, rate)]
            for j, run in enumerate(own):
                ratios = [each / run["threshold"] for each in run["sharpness"]]
                label = f"learning rate {rate:g}" if j == 0 else None
                ax.plot(run["step"], ratios, color=figures.COLOURS[i], linewidth=1.0, label=label)
        ax.axhline(1.0, color=figures.GREY, linestyle="--", linewidth=0.8)
        ax.set_xlabel(f"steps of {name} on all samples", fontsize=figures.FONT)
        ax.legend(frameon=False, fontsize=figures.FONT - 1, loc="lower right")
        ax.tick_params(labelsize=figures.FONT - 1)
        ax.set_ylim(0.0, 1.6)
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)
        if name == "SGD":
            ax.set_ylabel("sharpness / edge of stability", fontsize=figures.FONT)
    return figures.save(figure, kind)


if __name__ == "__main__":
    main()
