"""Whether a study's files are as they were written: the database, and the weights of its runs.

Size and checksum of a run's checkpoint stand in the database. Runs of earlier versions have none:
their files are checked for being complete.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from spiritlevel.ground.errors import SpiritlevelError

from .database import damaged
from .store import CHECKPOINT, Store

MOST_LISTED = 5  # runs in an error's text
CHUNK = 2**20
FileContent = dict[str, object]  # bytes and sha256


def check_database(store: Store) -> None:
    """Refuse a database that is damaged, before anything is written into it."""
    if problems := store.problems():
        raise damaged(store.folder, problems[0])
    try:
        name = store.study.name
        wrong = {run.id for run in store.settings()} - store.states().keys()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(store.folder, f"its settings cannot be read ({error})") from error
    if wrong:
        raise damaged(
            store.folder, f"{len(wrong)} runs of {name!r} have other settings than theirs"
        )


def lost_checkpoints(store: Store) -> dict[str, str]:
    """Finished runs whose weights are missing or damaged, and what is wrong."""
    recorded = store.entries(CHECKPOINT)
    lost = {}
    for row in store.rows("runs"):
        id_ = row["id"]
        trained = json.loads(row["settings"]).get("task") is None
        if row["status"] == "done" and (id_ in recorded or trained):
            lost[id_] = _problem(store.checkpoint(id_), recorded.get(id_))
    return {id_: problem for id_, problem in lost.items() if problem}


def intact_checkpoint(folder: pathlib.Path, run: str) -> pathlib.Path:
    """Where a run's weights are; an error if they are not those that were stored."""
    with Store.open(folder) as store:
        path = store.checkpoint(run)
        if problem := path.exists() and _problem(path, store.entry(CHECKPOINT + run)):
            raise SpiritlevelError(
                f"The weights {str(path)!r} are not those that were stored: {problem}. Put the "
                "file back from a copy, or train the run again: spiritlevel study resume "
                f"{folder} --retrain"
            )
    return path


def describe_lost(store: Store, lost: Mapping[str, str]) -> str:
    """What is lost, what is not, and what to do."""
    listed = "; ".join(f"{id_}: {problem}" for id_, problem in list(lost.items())[:MOST_LISTED])
    more = f"; and {len(lost) - MOST_LISTED} more" if len(lost) > MOST_LISTED else ""
    runs = "1 finished run has" if len(lost) == 1 else f"{len(lost)} finished runs have"
    return (
        f"{runs} no intact weights in {str(store.folder / 'checkpoints')!r} ({listed}{more}). "
        "Their numbers are safe in the store. Put the files back from a copy, or train these runs "
        f"again: spiritlevel study resume {store.folder} --retrain"
    )


def _problem(path: pathlib.Path, recorded: Mapping[str, Any] | None) -> str:
    """What is wrong with a file of weights; "" if nothing is."""
    try:
        size = path.stat().st_size
        if recorded is None:
            return "" if _is_complete(path, size) else "damaged"
        if size != recorded["bytes"]:
            return f"damaged, {size} of {recorded['bytes']} bytes"
        now = content_of(path.parent, [path])
        return "" if now == recorded else "damaged, other content"
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return f"unreadable, {error.strerror or error}"


def _is_complete(path: pathlib.Path, size: int) -> bool:
    """Whether a safetensors file has all the bytes that its heading speaks of."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= size - 8:
            return False
        try:
            heading = json.loads(file.read(length))
            ends = [entry["data_offsets"][1] for name, entry in heading.items() if name[:2] != "__"]
            return max(ends, default=0) == size - 8 - length
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            return False


def content_of(root: pathlib.Path, files: list[pathlib.Path]) -> FileContent | None:
    """Size and checksum of files together; None without files, which the run itself reports."""
    if not files:
        return None
    total, digest = 0, hashlib.sha256()
    for path in files:
        if len(files) > 1:  # which image is of which class
            digest.update(f"{path.relative_to(root).as_posix()}\0{path.stat().st_size}\0".encode())
        with open(path, "rb") as file:
            while chunk := file.read(CHUNK):
                total += len(chunk)
                digest.update(chunk)
    return {"bytes": total, "sha256": digest.hexdigest()}
