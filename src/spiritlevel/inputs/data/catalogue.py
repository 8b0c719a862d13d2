"""The public data sets: where they lie, how long they are, what they hash to, and fetching them.

The list is in catalogue.json beside this file; a file in it is its name, its bytes and its hash.
Checksums are SHA-256 where one is known from several independent places, else the MD5 that the
publisher states. MD5 finds accidents, not forgeries.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import sys
import urllib.parse
from collections.abc import Sequence
from importlib import resources

from ...ground.errors import SpiritlevelError, brief, suggestion
from ...records.measurements import Progress
from .download import download, has_checksum

FOLDER_VARIABLE = "SPIRITLEVEL_DATA"


@dataclasses.dataclass(frozen=True)
class RemoteFile:
    """One file as it is published."""

    name: str
    size: int  # bytes
    checksum: str  # "sha256:..." or "md5:..."


@dataclasses.dataclass(frozen=True)
class DataSet:
    """A data set of the catalogue."""

    name: str
    summary: str
    origin: str  # who made it, and under which terms
    sources: Sequence[str]  # addresses to which a file's name is appended; the first that works
    files: tuple[RemoteFile, ...]

    @property
    def size(self) -> int:
        """Bytes to download."""
        return sum(file.size for file in self.files)


def _read_catalogue() -> dict[str, DataSet]:
    text = resources.files("spiritlevel.inputs.data").joinpath("catalogue.json").read_text("utf-8")
    entries = [
        DataSet(**{**each, "files": tuple(RemoteFile(*file) for file in each["files"])})
        for each in json.loads(text)
    ]
    return {entry.name: entry for entry in entries}


CATALOGUE = _read_catalogue()


def find(name: str) -> DataSet:
    """The entry of that name, or a refusal that suggests the nearest."""
    try:
        return CATALOGUE[name]
    except KeyError:
        hint = suggestion(name, CATALOGUE, most=1)
        raise SpiritlevelError(
            f"The data set must be one of {', '.join(CATALOGUE)}. Got {brief(name)}.{hint} "
            "See `spiritlevel data list`."
        ) from None


def published_size(file_name: str) -> int | None:
    """How long a file of this name is as published; None where several have it, or none."""
    sizes = {f.size for entry in CATALOGUE.values() for f in entry.files if f.name == file_name}
    return sizes.pop() if len(sizes) == 1 else None


def data_folder() -> pathlib.Path:
    """Where fetched data lie: $SPIRITLEVEL_DATA, else a folder in the user's cache."""
    if chosen := os.environ.get(FOLDER_VARIABLE):
        return pathlib.Path(chosen).expanduser()
    home = pathlib.Path.home()
    if sys.platform == "darwin":
        cache = home / "Library" / "Caches"
    elif sys.platform == "win32":
        cache = pathlib.Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    else:
        cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    return cache / "spiritlevel" / "data"


def fetch(
    name: str,
    folder: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    sources: Sequence[str] | None = None,
) -> pathlib.Path:
    """Download the missing files of a data set; returns its folder.

    A file that exists with the right checksum is not fetched again. An interrupted download is
    resumed. A file gets its final name only after its checksum was verified.

    Args:
        folder: target; default: a folder of that name in `data_folder()`, where `load` looks.
        progress: called with the bytes done, the bytes in total and the file's name.
        sources: addresses (http or https) of folders to fetch from instead of the public ones, for
            example of a mirror in your own network; the checksums stay the same.

    """
    entry = find(name)
    addresses = tuple(entry.sources if sources is None else sources)
    _check_sources(addresses)
    target = data_folder() / name if folder is None else pathlib.Path(folder).expanduser()
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SpiritlevelError(
            f"The folder {str(target)!r} cannot be created: {error.strerror or error}. Give "
            "another "
            "one, or set SPIRITLEVEL_DATA."
        ) from error
    done = 0
    for file in entry.files:
        before = done

        def report(now: int, name: str = file.name, before: int = before) -> None:
            if progress is not None:
                progress(before + now, entry.size, name)

        path = target / file.name
        if not (path.is_file() and has_checksum(path, file.checksum)):
            urls = [f"{source.rstrip('/')}/{file.name}" for source in addresses]
            download(path, urls, size=file.size, checksum=file.checksum, report=report)
        done += file.size
        report(file.size)
    return target


def _check_sources(addresses: tuple[str, ...]) -> None:
    for address in addresses:
        parts = urllib.parse.urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise SpiritlevelError(
                "Each of the 'sources' of fetch must be an http or https address. "
                f"Got {brief(address)}. For example 'https://mirror.example.org/mnist/'."
            )
    if not addresses:
        raise SpiritlevelError(
            "The 'sources' argument of fetch must have at least one address. Got none. "
            "Leave it out for the public ones."
        )
