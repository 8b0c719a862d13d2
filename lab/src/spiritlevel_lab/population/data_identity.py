"""Whether data files are still those that a study's runs were made with.

A run is determined by its settings, and they name a file: `mine.npz`. Its size and checksum are
kept in the store when runs are made. Published sets do not change, and are checked when fetched.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable

from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.inputs.data.catalogue import CATALOGUE
from spiritlevel.inputs.data.folder import ENDINGS, SPLITS

from .runs.run_data import forget_data
from .runs.training_snapshots import remove_snapshots
from .settings.run import RunSettings
from .storage.integrity import FileContent, content_of
from .storage.store import Store

KEY = "data"  # of the store's entry with the contents of data files


def check_data(store: Store) -> None:
    """Refuse files with other content than finished runs were made with; remember the others.

    A store without an entry (of an earlier version) gets one, and is checked from then on.
    """
    if not store.counts().remaining:
        return
    finished = {row["id"] for row in store.rows("runs") if row["status"] == "done"}
    runs = store.settings()
    used = _names(run for run in runs if run.id in finished)
    recorded: dict[str, FileContent] = store.entry(KEY) or {}
    now = {
        name: identity for name in sorted(_names(runs)) if (identity := content(name)) is not None
    }
    if now:
        forget_data()
    for name in sorted(used & recorded.keys() & now.keys()):
        if recorded[name] != now[name]:
            raise SpiritlevelError(
                f"The data {name!r} have other content than when {len(finished)} runs of the study "
                f"in {str(store.folder)!r} were made: {_described(recorded[name])} then, "
                f"{_described(now[name])} now. Restore the former data, or use --out to run the "
                "study with these in another folder."
            )
    if any(recorded[name] != now[name] for name in recorded.keys() & now.keys()):
        remove_snapshots(store.folder, store.states())  # trained in part on what is no longer there
    if recorded | now != recorded:
        store.update_entry(KEY, lambda before: (before or {}) | now)


def content(name: str) -> FileContent | None:
    """Size and checksum of what a study's data name as a path; None if they name none."""
    kind, colon, path = name.partition(":")
    if kind.lower() == "folder" and colon:
        root = pathlib.Path(os.path.expanduser(path))
        return content_of(root, _images(root))
    if name.lower().endswith(".npz") and kind.lower() not in CATALOGUE:
        path = name
    file = pathlib.Path(os.path.expanduser(path))
    return content_of(file.parent, [file] if file.is_file() else [])


def _names(runs: Iterable[RunSettings]) -> set[str]:
    """What the runs' data are called, for training and for the test."""
    given = (name for run in runs for name in (run.data.name, run.data.test))
    return {name for name in given if name is not None}


def _images(root: pathlib.Path) -> list[pathlib.Path]:
    """What the reader of image folders looks at."""
    tops = [root / split for split in SPLITS if (root / split).is_dir()] or [root]
    candidates = (file for top in tops for file in top.glob("[!.]*/[!.]*"))
    return sorted(file for file in candidates if file.suffix.lower() in ENDINGS)


def _described(identity: FileContent) -> str:
    return f"{identity['bytes']:,} bytes with SHA-256 {str(identity['sha256'])[:16]}…"
