"""Run the quick preset of every study of the package once, from the command to the report.

python experiments/nightly.py                               # fetches the data that is missing
python experiments/nightly.py 001-fig-3 --data cifar10=cifar10.npz
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

from publishing.public_data import data_to_fetch
from spiritlevel_lab.population import control, registry

LIMIT = 600  # seconds that a quick preset may take on two cores
OUT = pathlib.Path(__file__).parents[1] / "build" / "nightly"
WORKERS = 2


@dataclasses.dataclass(frozen=True)
class Night:
    """How the run of one study went."""

    name: str
    runs: int
    seconds: float
    error: str = ""


def main() -> None:
    """Run the studies one after another; the exit code is 1 if one failed or took too long."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="names of studies (default: all)")
    parser.add_argument(
        "--data",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="use this data instead of fetching it",
    )
    parser.add_argument("--out", type=pathlib.Path, default=OUT)
    arguments = parser.parse_args()
    given = dict(pair.split("=", 1) for pair in arguments.data)
    nights = []
    for name in arguments.names or registry.study_names():
        nights.append(night(name, arguments.out / name, given))
        print(line_of(nights[-1]), flush=True)
        rows = [dataclasses.asdict(each) for each in nights]
        (arguments.out / "nights.json").write_text(json.dumps(rows, indent=1) + "\n")
    missed = [each.name for each in nights if each.error]
    print(f"{len(nights) - len(missed)} of {len(nights)} finished within {LIMIT} seconds each")
    if missed:
        sys.exit(f"missed: {', '.join(missed)}")


def night(name: str, folder: pathlib.Path, given: dict[str, str]) -> Night:
    """Run the study in an empty folder, then make its report."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    study = control.find(name).with_preset("quick")
    changes = []
    for key, data in data_to_fetch(study).items():
        if data in given:
            changes += ["--set", f"{key}={given[data]}"]
        else:
            spiritlevel("data", "fetch", data)
    start, error = time.monotonic(), ""
    try:
        preset = ["--preset", "quick", "--workers", str(WORKERS), "--out", str(folder)]
        spiritlevel("study", "run", name, *preset, *changes, limit=LIMIT)
        spiritlevel("report", str(folder), "--out", str(folder / "report.html"))
    except subprocess.TimeoutExpired:
        error = f"not finished after {LIMIT} seconds"
    except subprocess.CalledProcessError as failed:
        error = failed.stderr.strip().splitlines()[-1]
    return Night(name, len(study.runs()), time.monotonic() - start, error)


def spiritlevel(*arguments: str, limit: float | None = None) -> None:
    """Run a command as a user would type it."""
    command = [sys.executable, "-m", "spiritlevel.cli", *arguments]
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, errors = process.communicate(timeout=limit)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)  # its workers too
        process.communicate()
        raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, stderr=errors)


def line_of(night: Night) -> str:
    """One line for the terminal."""
    return f"{night.name:12} {night.runs:3} runs {night.seconds:5.0f} s  {night.error or 'done'}"


if __name__ == "__main__":
    main()
