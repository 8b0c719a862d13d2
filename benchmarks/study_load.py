"""Large studies: seconds and memory of each command that reads a store of 1,000 to 10,000 runs.

    python benchmarks/study_load.py [--runs 1000 3000 10000] [--commands report status ...]

The runs are made up, not trained: a grid of 100 settings with many seeds, 20 epochs, 14 measures of
the network, 3 of them by layer, and 2 of them every fifth epoch. They go into the store one by one,
as a worker stores them. Every command runs in a process of its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import torch
from harness import RESULTS, machine

from spiritlevel.study import Store, Study
from spiritlevel.study.run_results import EpochMeasurementRow, EpochRow, MeasurementRow, RunResult

EPOCHS, TRAIN, TEST = 20, 1200, 597
LAYERS = ("0", "2", "4", "6")
BY_LAYER = ("relative.kappa", "curvature.trace", "norms.weight")
WHILE_TRAINING = ("relative.kappa", "curvature.trace")
MEASURES = (
    *BY_LAYER,
    *("curvature.lambda_max", "relative.rho", "scaled.trace", "head.trace", "head.kappa"),
    *("norms.distance", "softmax.entropy", "pac_bayes.sigma", "sharpness.ascent"),
    *("bound.generalization", "sensitivity.jacobian"),
)
SECONDS, MEGABYTES = 120.0, 1024.0  # the goal for 10,000 runs, for each command
COMMANDS = {
    "status": ["study", "status", "{store}"],
    "report": ["study", "report", "{store}", "--html", "{out}/report.html"],
    "report by error": [
        *["study", "report", "{store}", "--target", "error_gap"],
        *["--html", "{out}/error.html"],
    ],
    "figures": ["study", "figures", "{store}", "--out", "{out}/figures"],
    "export": ["study", "export", "{store}", "--out", "{out}/tables"],
    "watch": ["watch", "{store}", "--json", "{out}/watch.json"],
}


def study(num_runs: int) -> Study:
    """A grid of 100 settings, and as many seeds as make up the number."""
    return Study(
        "load",
        model={"name": "mlp", "hidden": [64, 64, 64]},
        training={"epochs": EPOCHS, "momentum": 0.9},
        grid={
            "lr": [0.003, 0.01, 0.03, 0.1, 0.3],
            "batch_size": [16, 32, 64, 128, 256],
            "weight_decay": [0.0, 1e-4, 1e-3, 1e-2],
        },
        seeds=num_runs // 100,
        measures=list(MEASURES),
        measure_every=5,
        epoch_measures=list(WHILE_TRAINING),
    )


def made_up(lr: float, batch_size: int, decay: float, rng: random.Random, chip: str) -> RunResult:
    """A result whose measures depend on the settings, on the gap, and on chance."""
    flatness = math.log(batch_size / lr) + rng.gauss(0, 0.5)
    gap = abs(0.05 * flatness - 20 * decay + rng.gauss(0, 0.1)) + 0.01
    epochs = []
    for epoch in range(1, EPOCHS + 1):
        loss = 2.3 * math.exp(-3 * lr**0.2 * epoch / EPOCHS) * rng.uniform(0.9, 1.1)
        accuracy = round(TRAIN * math.exp(-loss)) / TRAIN
        test = round(TEST * math.exp(-loss - gap)) / TEST
        epochs.append(EpochRow(epoch, loss, accuracy, loss + gap * epoch / EPOCHS, test))
    return RunResult(
        outcome="epochs",
        epochs=tuple(epochs),
        measurements=tuple(
            _row(name, layer, math.exp(flatness * rng.uniform(0.5, 1.0)))
            for name in MEASURES
            for layer in ("", *(LAYERS if name in BY_LAYER else ()))
        ),
        checkpoint=b"",
        num_train=TRAIN,
        num_test=TEST,
        seconds=rng.uniform(1.0, 2.0),
        machine=chip,
        epoch_measurements=tuple(
            EpochMeasurementRow(**vars(_row(name, "", math.exp(rng.gauss(0, 1)))), epoch=epoch)
            for epoch in range(5, EPOCHS + 1, 5)
            for name in WHILE_TRAINING
        ),
    )


def _row(measure: str, layer: str, value: float) -> MeasurementRow:
    return MeasurementRow(measure, layer, value, None, value / 50, True, "ok", "")


def make(folder: pathlib.Path, num_runs: int) -> float:
    """Fill a store as a worker would; the seconds of CPU it took."""
    rng = random.Random(0)
    chip = json.dumps({"device": "none", "threads": 1, "trained": "alone"})
    start = time.process_time()
    with Store.create(folder, study(num_runs)) as store:
        while (claim := store.claim("here|0|0|0", lease=math.inf)) is not None:
            training = claim.settings.training
            result = made_up(training.lr, training.batch_size, training.weight_decay, rng, chip)
            store.finish(claim, result)
    return time.process_time() - start


@dataclasses.dataclass(frozen=True)
class Load:
    """What one command needed for a store of this size."""

    command: str
    runs: int
    seconds: float
    cpu_seconds: float  # which other programs on the machine do not lengthen
    megabytes: float  # most memory at one time
    written_megabytes: float

    def __str__(self) -> str:
        return (
            f"{self.command:16s} {self.runs:6d} runs  {self.seconds:7.1f} s  "
            f"({self.cpu_seconds:.1f} s of CPU)  {self.megabytes:7.0f} MB  "
            f"wrote {self.written_megabytes:.1f} MB"
        )


def timed(command: str, store: pathlib.Path, num_runs: int) -> Load:
    """Run the command in a process of its own."""
    with tempfile.TemporaryDirectory() as out:
        words = [word.format(store=store, out=out) for word in COMMANDS[command]]
        code = (
            "import resource, subprocess, sys\n"
            "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)\n"
            "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
            "print(used.ru_maxrss, used.ru_utime + used.ru_stime)\n"
        )
        start = time.perf_counter()
        ended = subprocess.run(
            [sys.executable, "-c", code, sys.executable, "-m", "spiritlevel", *words],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        seconds = time.perf_counter() - start
        written = sum(file.stat().st_size for file in pathlib.Path(out).rglob("*.*"))
    memory, cpu_seconds = map(float, ended.stdout.split())
    megabytes = memory / (2**20 if sys.platform == "darwin" else 2**10)
    return Load(command, num_runs, seconds, cpu_seconds, megabytes, written / 2**20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, nargs="+", default=[1000, 3000, 10_000])
    parser.add_argument("--commands", nargs="+", default=list(COMMANDS), choices=COMMANDS)
    parser.add_argument("--keep", type=pathlib.Path, help="a folder in which the stores stay")
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for num_runs in arguments.runs:
            store = (arguments.keep or pathlib.Path(scratch)) / str(num_runs)
            if not store.exists():
                took = make(store, num_runs)
                rows.append({"command": "claim and store", "runs": num_runs, "cpu_seconds": took})
                print(
                    f"{'claim and store':16s} {num_runs:6d} runs  {took:7.1f} s of CPU", flush=True
                )
            for command in arguments.commands:
                load = timed(command, store, num_runs)
                rows.append(dataclasses.asdict(load))
                print(load, flush=True)
            if arguments.keep is None:
                shutil.rmtree(store)
    content = {
        "benchmark": "study_load",
        "machine": machine(torch.device("cpu")),
        "goal": {"runs": 10_000, "seconds": SECONDS, "megabytes": MEGABYTES},
        "rows": rows,
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "study_load-cpu.json"
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    print(f"wrote {path.name}")


if __name__ == "__main__":
    main()
