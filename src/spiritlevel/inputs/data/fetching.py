"""Download a data set of the catalogue and verify every file."""

from __future__ import annotations

import os
import pathlib
import urllib.parse
from collections.abc import Sequence

from ...ground.errors import SpiritlevelError, brief
from ...results import Progress
from .catalogue import data_folder, find
from .download import download, has_checksum


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
