"""Files in a folder or in a tar archive, alike; an archive is read where it lies."""

from __future__ import annotations

import bz2
import gzip
import lzma
import pathlib
import posixpath
import tarfile
from collections.abc import Collection
from typing import IO, cast

from ...ground.errors import SpiritlevelError
from ...ground.files.unpacking import CountedReader
from .catalogue import published_size

MAX_BYTES = 2**29  # of one file: far above any of the catalogue, far below a full memory


def read_members(place: pathlib.Path, names: Collection[str]) -> dict[str, bytes]:
    """The bytes of those of the named files that are in the folder or archive.

    In an archive folders do not count, nor does anything but regular files.
    """
    if place.is_dir():
        return {name: _read_file(place / name) for name in names if (place / name).is_file()}
    try:
        with _unpacked(place) as stream:
            advice = "It cannot be what its name says: fetch it again."
            counted = CountedReader(stream, str(place), advice=advice)
            # As a stream: nothing is read twice, and every byte is counted, headings too.
            with tarfile.open(fileobj=counted, mode="r|") as archive:  # type: ignore[call-overload]
                return _read_archive(archive, place, names)
    except SpiritlevelError:
        raise
    except Exception as error:  # damaged archives raise nearly anything
        size, published = place.stat().st_size, published_size(place.name)
        expected = f" of {published} bytes, as published" if published else ""
        raise SpiritlevelError(
            f"The data file {str(place)!r} must be a whole tar archive{expected}. Got {size} "
            f"bytes, and reading them failed with {type(error).__name__}: {error}. "
            "It is cut short or damaged: fetch it again."
        ) from error


def _unpacked(place: pathlib.Path) -> IO[bytes]:
    """The file without its compression, which is known by its first bytes."""
    with open(place, "rb") as file:
        start = file.read(6)
    if start.startswith(b"\x1f\x8b"):
        return cast(IO[bytes], gzip.open(place))
    if start.startswith(b"BZh"):
        return cast(IO[bytes], bz2.open(place))
    if start.startswith(b"\xfd7zXZ\0"):
        return cast(IO[bytes], lzma.open(place))
    return open(place, "rb")


def where(place: pathlib.Path, name: str) -> str:
    """For error texts: which file, in which place."""
    return repr(str(place / name)) if place.is_dir() else f"{name!r} in {str(place)!r}"


def _read_archive(
    archive: tarfile.TarFile, place: pathlib.Path, names: Collection[str]
) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    for member in archive:
        name = posixpath.basename(member.name)
        if member.isreg() and name in names:
            _check_size(where(place, name), member.size)
            content = archive.extractfile(member)
            assert content is not None  # it is a regular file
            contents[name] = content.read()
    return contents


def _read_file(path: pathlib.Path) -> bytes:
    try:
        _check_size(repr(str(path)), path.stat().st_size)
        return path.read_bytes()
    except OSError as error:
        raise SpiritlevelError(
            f"The data file {str(path)!r} cannot be read: {error.strerror or error}. "
            "Check its permissions."
        ) from error


def _check_size(file: str, size: int) -> None:
    if size > MAX_BYTES:
        raise SpiritlevelError(
            f"The data file {file} must have at most {MAX_BYTES} bytes. Got {size}. "
            "It cannot be what its name says: fetch it again."
        )
