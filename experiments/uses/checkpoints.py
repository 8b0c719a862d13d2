"""Networks of a plain training loop, measured by the command, and a study's own checkpoints again.

Trains digits networks with three learning rates, two batch sizes, two weight decays and several
seeds in a plain loop, saves state dicts and a table, and measures them with `spiritlevel study
measure`. A study trains networks of the same settings; its checkpoints, measured by the same
command, must give the study's own numbers up to round-off. Writes
experiments/results/uses/checkpoints.json.

`python experiments/uses/checkpoints.py --out FOLDER`
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import torch
from networks import parser
from summaries import compact, machine
from torch.nn import functional as F

from spiritlevel.inputs import build, digits
from spiritlevel_lab import Population, Store, Study, run
from spiritlevel_lab.population.population_statistics import statistics
from spiritlevel_lab.statistics import StudyStatistics

GRID = {"lr": (0.03, 0.1, 0.3), "batch_size": (16, 64), "weight_decay": (0.0, 0.003)}
WIDTH, EPOCHS = 32, 10
MEASURES = ("curvature.trace", "relative.kappa", "scaled.trace", "norms.weight", "softmax.gini")


def plain_loop(folder: pathlib.Path, seeds: list[int]) -> pathlib.Path:
    """Train and save as somebody would who does not know this library; the table's path."""
    x, y = digits("train")
    test_x, test_y = digits("test")
    rows = []
    for lr, size, decay in itertools.product(*GRID.values()):
        for seed in seeds:
            torch.manual_seed(seed)
            model = build("mlp", hidden=WIDTH)
            optimizer = torch.optim.SGD(model.parameters(), lr, weight_decay=decay)
            for _ in range(EPOCHS):
                for index in torch.randperm(len(x)).split(size):
                    optimizer.zero_grad()
                    F.cross_entropy(model(x[index]), y[index]).backward()
                    optimizer.step()
            path = folder / f"lr{lr}_bs{size}_wd{decay}_seed{seed}.pt"
            torch.save(model.state_dict(), path)
            with torch.no_grad():
                loss = float(F.cross_entropy(model(x), y))
                gap = float(F.cross_entropy(model(test_x), test_y)) - loss
                accuracy = float((model(test_x).argmax(dim=1) == test_y).double().mean())
            rows.append([path.name, lr, size, decay, seed, loss, gap, accuracy])
    return _table(folder, [*GRID, "seed", "train_loss", "gap", "test_accuracy"], rows)


def trained_study(folder: pathlib.Path, seeds: list[int]) -> tuple[pathlib.Path, Population, Any]:
    """A study with these settings: a table of its checkpoints, its runs and its statistics."""
    study = Study(
        name="trained",
        model={"name": "mlp", "hidden": WIDTH},
        training={"epochs": EPOCHS},
        grid={key: list(values) for key, values in GRID.items()},
        seeds=seeds,
        measures=list(MEASURES),
    )
    with run(study, folder / "trained") as store:
        rows = [
            [str(store.checkpoint(each.id).absolute()), *each.axes.values(), each.seed]
            for each in store.settings()
        ]
        found = Population.of(store)
        return _table(folder, [*GRID, "seed"], rows), found, statistics(store)


def measured(table: pathlib.Path, out: pathlib.Path, *more: str) -> tuple[Population, Any]:
    """The command, as a user calls it; then the statistics of what it kept."""
    command = [sys.executable, "-m", "spiritlevel", "study", "measure", str(table)]
    command += ["--model", "mlp", "--model-arg", f"hidden={WIDTH}", "--data", "digits"]
    command += ["--setting", ",".join(GRID), "--measures", ",".join(MEASURES)]
    subprocess.run([*command, "--out", str(out), *more], check=True)
    with Store.open(out) as store:
        return Population.of(store), statistics(store)


def differences(one: Population, other: Population) -> dict[str, float]:
    """The largest relative difference of each number, over all networks."""
    names = (*MEASURES, "train_loss", "test_loss", "train_accuracy", "test_accuracy")
    pairs = list(zip(one.rows, other.rows, strict=True))
    return {
        name: max(abs(a[name] - b[name]) / max(abs(a[name]), 1e-300) for a, b in pairs)
        for name in names
    }


def largest_difference(one: Any, other: Any) -> float:
    """Of all numbers in two statistics, absolute; infinite where anything else differs."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return max((largest_difference(one[key], other[key]) for key in one), default=0.0)
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return max(
            (largest_difference(*pair) for pair in zip(one, other, strict=True)), default=0.0
        )
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) / max(1.0, abs(one))
    return 0.0 if one == other else math.inf


def judged(found: StudyStatistics) -> dict[str, Any]:
    """What is said of each measure: over settings, within and between them, given confounders."""
    out = {}
    for name, row in found.measures.items():
        rank, level = row.judged, row.levels.get("spearman")
        given = row.partial_spearman
        out[name] = {
            "n": rank.n,
            "spearman": _ends(rank),
            "p_holm": row.holm.get("judged"),
            "within": None if level is None else _ends(level.within),
            "between": None if level is None else _ends(level.between),
            "given_confounders": None if given is None else _ends(given),
            "verdict": row.verdict,
        }
    return out


def _ends(found: Any) -> list[float | None]:
    """Value and interval; None where one is not defined."""
    ends = (found.value, found.low, found.high)
    return [None if math.isnan(number) else number for number in ends]


def _table(folder: pathlib.Path, columns: list[str], rows: list[list[Any]]) -> pathlib.Path:
    path = folder / "runs.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["checkpoint", *columns], *rows])
    return path


def main() -> None:
    """Both populations, and their file of results."""
    options = parser("Measure checkpoints that exist already.")
    options.set_defaults(seeds=[0, 1, 2, 3])
    asked = options.parse_args()
    folder = asked.out / "checkpoints"
    shutil.rmtree(folder, ignore_errors=True)
    folders = {name: folder / name for name in ("plain", "study")}
    for each in folders.values():
        each.mkdir(parents=True)
    networks, found = measured(plain_loop(folders["plain"], asked.seeds), folder / "measured-plain")
    table, trained, expected = trained_study(folders["study"], asked.seeds)
    again, statistics_again = measured(table, folder / "measured-study", "--test", "digits")
    apart = largest_difference(expected.to_dict(), statistics_again.to_dict())
    result = {
        "machine": machine(),
        "plain_loop": {
            "networks": len(networks.rows),
            "settings": found.settings,
            "confounders": list(found.confounders),
            "measures": judged(found),
        },
        "study_measured_again": {
            "networks": len(again.rows),
            "relative_differences": differences(trained, again),
            "statistics_difference": apart,
        },
    }
    asked.results.mkdir(parents=True, exist_ok=True)
    text = json.dumps(compact(result), indent=1) + "\n"
    (asked.results / "checkpoints.json").write_text(text)
    print(text)
    # Float32 sums in another order. A rank statistic jumps if two networks lie closer than that.
    assert max(result["study_measured_again"]["relative_differences"].values()) < 1e-4
    assert apart < 1e-3


if __name__ == "__main__":
    main()
