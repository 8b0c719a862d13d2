"""What Lightning and Hugging Face write beside a checkpoint: settings, numbers logged so far."""

from __future__ import annotations

import csv
import math
import pathlib
import re
from typing import Any

from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.records.reading import Misread, parse_json

from ..settings.yaml_text import read_yaml

STATE = "trainer_state.json"  # of Hugging Face's Trainer
NOT_OF_THE_NETWORK = re.compile(r".*(_runtime|_per_second|total_flos)|epoch|step")
Columns = dict[str, Any]


def columns_beside(checkpoint: pathlib.Path) -> Columns:
    """Single numbers and names that are written beside a checkpoint.

    A file that is not as its framework writes it says nothing.
    """
    if checkpoint.is_dir():
        return _trainer_state(checkpoint / STATE)
    if checkpoint.parent.name == "checkpoints":
        run = checkpoint.parent.parent
        return _logged(run / "metrics.csv", checkpoint.name) | _hyperparameters(
            run / "hparams.yaml"
        )
    return {}


def of_framework(checkpoint: pathlib.Path) -> bool:
    """Whether it lies where Lightning or the Trainer of Hugging Face puts those of one run."""
    return checkpoint.parent.name == "checkpoints" or (checkpoint / STATE).is_file()


def run_folder(checkpoint: pathlib.Path) -> pathlib.Path:
    """The folder of the run that wrote a checkpoint."""
    if checkpoint.parent.name == "checkpoints":
        return checkpoint.parent.parent
    return checkpoint.parent


def _trainer_state(path: pathlib.Path) -> Columns:
    """Step and epoch of the checkpoint, and the last of each number that was logged by then."""
    try:
        state = parse_json(path.read_text("utf-8"))
        step = state["global_step"]
        entries = [each for each in state["log_history"] if each.get("step", 0) <= step]
        columns = {"step": step, "epoch": state.get("epoch")}
    except (OSError, UnicodeDecodeError, Misread, KeyError, TypeError, AttributeError):
        return {}
    for entry in entries:
        columns |= {k: v for k, v in entry.items() if not NOT_OF_THE_NETWORK.fullmatch(k)}
    return _plain(columns)


def _hyperparameters(path: pathlib.Path) -> Columns:
    try:
        found = read_yaml(path.read_text("utf-8"), source=repr(str(path)))
    except (OSError, UnicodeDecodeError, SpiritlevelError):  # tags of Python objects are not read
        return {}
    return _plain(found) if isinstance(found, dict) else {}


def _logged(path: pathlib.Path, checkpoint: str) -> Columns:
    """The last of each number, up to the epoch that the checkpoint's name gives."""
    match = re.search(r"epoch=(\d+)", checkpoint)
    last = int(match[1]) if match else math.inf
    columns: Columns = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                if float(row.get("epoch") or 0) <= last:
                    columns |= {k: v for k, v in row.items() if k and v}
    except (OSError, UnicodeDecodeError, ValueError, csv.Error):
        return {}
    return {k: v for k, v in columns.items() if not NOT_OF_THE_NETWORK.fullmatch(k)}


def _plain(values: dict[Any, Any]) -> Columns:
    return {
        str(key): value for key, value in values.items() if isinstance(value, str | int | float)
    }
