"""Checkpoints in files and folders: plain ones, run folders of Lightning, and of Hugging Face.

    runs/lr=0.1/seed0.pt                                   a file is a network
    out/checkpoint-500/model.safetensors                   so is what save_pretrained wrote
    lightning_logs/version_3/checkpoints/epoch=9.ckpt      with hparams.yaml and metrics.csv

What a path says is read with a pattern such as "lr={lr}/seed{seed}.pt". What the two frameworks
write beside their checkpoints, settings and logged numbers, is offered as columns.
"""

from __future__ import annotations

import csv
import dataclasses
import glob
import math
import os
import pathlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

from spiritlevel.ground.errors import SpiritlevelError, brief, suggestion
from spiritlevel.ground.files import natural
from spiritlevel.inputs.checkpoints import INDEXES, WHOLE
from spiritlevel.records.reading import Misread, parse_json

from ..outcome_names import KNOWN_OUTCOMES
from ..settings.plain_values import read_yaml
from .columns import CHECKPOINT, UNDERSTOOD, ColumnRoles, NetworkTable

STATE = "trainer_state.json"  # of Hugging Face's Trainer
LIGHTNING = "checkpoints"  # the folder in which Lightning puts them
NOT_OF_THE_NETWORK = re.compile(r".*(_runtime|_per_second|total_flos)|epoch|step")
Columns = dict[str, Any]


def columns_beside(checkpoint: pathlib.Path) -> Columns:
    """Single numbers and names that are written beside a checkpoint.

    A file that is not as its framework writes it says nothing.
    """
    if checkpoint.is_dir():
        return _trainer_state(checkpoint / STATE)
    if checkpoint.parent.name == LIGHTNING:
        run = checkpoint.parent.parent
        return _logged(run / "metrics.csv", checkpoint.name) | _hyperparameters(
            run / "hparams.yaml"
        )
    return {}


def run_folder(checkpoint: pathlib.Path) -> pathlib.Path:
    """The folder of the run that wrote a checkpoint."""
    if checkpoint.parent.name == LIGHTNING:
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


ENDINGS = (".safetensors", ".pt", ".pth", ".ckpt", ".bin")
# Files of these endings that frameworks write beside the weights.
NO_WEIGHTS = re.compile(r"(optimizer|scheduler|scaler|rng_state.*|training_args|tokenizer.*)\.\w+")
FIELD = re.compile(r"\{([^{}]*)\}")
FOLDER = "folder"  # the column with the folder of a network's run


@dataclasses.dataclass(frozen=True)
class FoundNetworks:
    """The networks as a table, the roles of its columns, and columns that nobody asked for."""

    table: NetworkTable
    roles: ColumnRoles
    beside: Sequence[str]
    rows: Sequence[dict[str, Any]]  # with all columns
    one_run: bool  # whether some are checkpoints of one run, and nothing says so


def find_networks(
    paths: Sequence[str | os.PathLike[str]],
    *,
    names: str | None = None,
    roles: ColumnRoles | None = None,
) -> FoundNetworks:
    """All checkpoints in files, folders and patterns such as "runs/*.pt".

    Args:
        paths: files, folders, or patterns.
        names: how their paths are read, such as "lr={lr}/seed{seed}.pt"; what stands there is a
            setting, unless its name is understood otherwise.
        roles: of these and of columns that are found beside the checkpoints.
    """
    roles = ColumnRoles() if roles is None else roles
    checkpoints = find_checkpoints(paths)
    said = _said(checkpoints, names)
    beside = [columns_beside(path) for path in checkpoints]
    folders = _folders(checkpoints)
    everything = [
        ({FOLDER: folder} if folder is not None else {}) | there | own
        for folder, there, own in zip(folders, beside, said, strict=True)
    ]
    there = list(dict.fromkeys(key for row in everything for key in row))
    declared = [*roles.settings, *roles.arguments, *roles.outcomes]
    for name in (*declared, *roles.ignored):
        if name not in there:
            raise SpiritlevelError(
                f"There is no {name!r} in the paths or beside the checkpoints. There are: "
                f"{', '.join(there) or 'no columns at all'}.{suggestion(name, there)} Read it from "
                "the paths with --names 'lr={lr}/seed{seed}.pt', or write a table."
            )
    fields = list(said[0])
    used = [name for name in dict.fromkeys((*fields, *declared)) if name not in roles.ignored]
    rows = [
        {CHECKPOINT: str(path)} | {name: row.get(name) for name in used}
        for path, row in zip(checkpoints, everything, strict=True)
    ]
    understood = {*UNDERSTOOD, *KNOWN_OUTCOMES, *roles.outcomes}
    settings = [n for n in (*fields, *roles.settings) if n not in understood and n in used]
    places = [repr(str(path)) for path in checkpoints]
    ours = [
        path for path in checkpoints if path.parent.name == LIGHTNING or (path / STATE).is_file()
    ]
    runs = [os.path.realpath(run_folder(path)) for path in ours]
    source = "the checkpoints in " + ", ".join(repr(os.fspath(path)) for path in paths)
    return FoundNetworks(
        NetworkTable(rows, places, source),
        dataclasses.replace(roles, settings=list(dict.fromkeys(settings)), ignored=()),
        [name for name in there if name not in used and name not in roles.ignored],
        [{CHECKPOINT: str(p)} | row for p, row in zip(checkpoints, everything, strict=True)],
        len(set(runs)) < len(runs) and FOLDER not in used,
    )


def find_checkpoints(paths: Iterable[str | os.PathLike[str]]) -> list[pathlib.Path]:
    """The checkpoints that paths stand for, each once, version2 before version10."""
    found: dict[str, pathlib.Path] = {}
    for given in paths:
        text = os.path.expanduser(os.fspath(given))
        if os.path.exists(text):
            here = _within(pathlib.Path(text))
        else:
            matches = sorted(glob.glob(text, recursive=True))
            here = [each for match in matches for each in _within(pathlib.Path(match))]
        if not here:
            raise SpiritlevelError(
                f"There are no checkpoints in {text!r}. A checkpoint is a file that ends in "
                f"{', '.join(ENDINGS)}, or a folder that save_pretrained wrote. Looked for in "
                f"{os.getcwd()!r}."
            )
        for path in sorted(here, key=lambda path: natural(str(path))):
            found.setdefault(os.path.realpath(path), path)
    return list(found.values())


def _within(path: pathlib.Path) -> list[pathlib.Path]:
    if path.is_file():
        return [path]
    found = []
    for folder, below, files in os.walk(path):
        below[:] = [name for name in below if not name.startswith(".")]
        place = pathlib.Path(folder)
        if any(name in files for name in (*WHOLE, *INDEXES)):
            found.append(place)  # the folder is the checkpoint
            continue
        found += [
            place / name
            for name in files
            if name.endswith(ENDINGS) and not NO_WEIGHTS.fullmatch(name)
        ]
    return found


def _folders(paths: Sequence[pathlib.Path]) -> list[str | None]:
    """The folder of each network's run, from where they part; None where they share one."""
    folders = [os.path.abspath(run_folder(path)) for path in paths]
    if len(set(folders)) < 2:
        return [None] * len(paths)
    common = os.path.commonpath(folders)
    return [os.path.relpath(folder, common) for folder in folders]


def _said(paths: Sequence[pathlib.Path], names: str | None) -> list[dict[str, Any]]:
    """What each path says, by the fields of the pattern."""
    if names is None:
        return [{} for _ in paths]
    fields = FIELD.findall(names)
    wrong = [field for field in fields if not field.isidentifier()]
    if not fields or wrong or len(set(fields)) < len(fields):
        raise SpiritlevelError(
            "The --names must have names in braces, each once, such as 'lr={lr}/seed{seed}.pt'. "
            f"Got {brief(names)}."
        )
    parts = FIELD.split(names)  # text, field, text, ...
    pattern = "".join(
        f"(?P<{part}>[^/]+?)" if i % 2 else re.escape(part) for i, part in enumerate(parts)
    )
    depth = names.count("/") + 1
    said = []
    for path in paths:
        end = "/".join(path.absolute().parts[-depth:])
        match = re.fullmatch(pattern, end) or re.fullmatch(pattern, end.removesuffix(path.suffix))
        if match is None:
            raise SpiritlevelError(
                f"The --names must fit every checkpoint. Got {brief(names)}, and {end!r} is not of "
                "that form. Narrow the paths down, or change the pattern."
            )
        said.append(dict(match.groupdict()))
    return said
