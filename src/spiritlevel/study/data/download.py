"""One file from one of several addresses: goes on where it stopped, verified before it counts.

The bytes go to NAME.part. That file stays whatever happens (a broken line, a full disk, Ctrl-C,
kill), and the next call asks only for what is missing. It is removed if its checksum is wrong, and
becomes NAME in one step if it is right.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import pathlib
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, Protocol

from ...errors import SpiritlevelError
from ...results import __version__
from .checksums import file_checksum, has_checksum

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

ATTEMPTS = 4  # at one address, in a row and without a byte more than before
TIMEOUT = 30.0  # seconds without a byte
_CHUNK = 2**17
_PASSING = (408, 425, 429)  # and all from 500 on: the server may answer better in a moment
_sleep = time.sleep


class Progress(Protocol):
    """How far something is."""

    def __call__(self, done: float, total: float | None, text: str = "") -> None:
        """`total` is None where it is not known."""


class _GivenUp(Exception):
    """This address will not do; the text says why."""


class _WrongContent(_GivenUp):
    """What came is not the file."""


def download(
    path: pathlib.Path,
    urls: Sequence[str],
    *,
    size: int,
    checksum: str,
    report: Callable[[int], None],
) -> None:
    """Get the file from the first address that gives it whole and right.

    Raises SpiritlevelError that says what happened at each address.
    """
    part = path.with_name(f"{path.name}.part")
    with _opened(part) as file:
        if path.is_file() and has_checksum(path, checksum):  # another process was quicker
            part.unlink()
            return
        reasons = []
        for url in urls:
            try:
                _get_right(file, part, url, size=size, checksum=checksum, report=report)
            except _GivenUp as error:
                reasons.append(f"{url}: {error}")
                continue
            os.fsync(file.fileno())
            os.replace(part, path)
            return
        kept = _length(file)
        if not kept:
            part.unlink()
    state = (
        f"The {kept} of {size} bytes that came are kept in {str(part)!r}: run it again to go on"
        if kept
        else "Nothing was kept. Try again later"
    )
    raise SpiritlevelError(
        f"The file {path.name!r} could not be fetched. {'; '.join(reasons)}. {state}, or copy the "
        f"file to {str(path.parent)!r} by other means."
    )


def _get_right(
    file: IO[bytes],
    part: pathlib.Path,
    url: str,
    *,
    size: int,
    checksum: str,
    report: Callable[[int], None],
) -> None:
    """Complete the part file; if it then is wrong and was begun earlier, once more from nothing."""
    for begun in (_length(file), 0):
        _complete(file, part, url, size=size, report=report)
        found = file_checksum(part, checksum.partition(":")[0])
        if found == checksum:
            return
        _empty(file)
        if not begun:
            break
    raise _WrongContent(f"wrong checksum: expected {checksum}, got {found}; the file was removed")


def _complete(
    file: IO[bytes], part: pathlib.Path, url: str, *, size: int, report: Callable[[int], None]
) -> None:
    """Ask again and again until the part file has `size` bytes."""
    failures, best = 0, _length(file)
    while _length(file) != size:
        try:
            _continue(file, part, url, size=size, report=report)
        except urllib.error.HTTPError as error:
            reason = f"HTTP status {error.code} {error.reason}"
            error.close()
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                _empty(file)  # what we have is longer than what they have
            elif error.code < 500 and error.code not in _PASSING:
                raise _GivenUp(reason) from error
        except _WrongContent:
            _empty(file)
            raise
        except (OSError, http.client.HTTPException) as error:  # URLError and timeouts are OSErrors
            reason = f"{getattr(error, 'reason', error) or type(error).__name__}"
        else:
            continue
        # A server that always breaks off at the same place must not keep us here for ever.
        failures = 1 if _length(file) > best else failures + 1
        best = max(best, _length(file))
        if failures == ATTEMPTS:
            raise _GivenUp(f"{reason} ({ATTEMPTS} times in a row)")
        _sleep(2 ** (failures - 1))


def _continue(
    file: IO[bytes], part: pathlib.Path, url: str, *, size: int, report: Callable[[int], None]
) -> None:
    """One request for the bytes that are missing."""
    if (done := _length(file)) > size:
        done = _empty(file)
    _check_room(part, size - done)
    headers = {"User-Agent": f"spiritlevel/{__version__}", "Accept-Encoding": "identity"}
    if done:
        headers["Range"] = f"bytes={done}-"
    with urllib.request.urlopen(
        urllib.request.Request(url, headers=headers), timeout=TIMEOUT
    ) as response:
        if done and not _starts_at(response, done):  # a server that cannot: from the start
            done = _empty(file)
        length = response.headers.get("Content-Length", "")
        if length.isdecimal() and done + int(length) != size:
            raise _WrongContent(f"{done + int(length)} bytes instead of {size}: not this file")
        while chunk := response.read(_CHUNK):
            if done + len(chunk) > size:
                raise _WrongContent(f"more than {size} bytes: not this file")
            _write(file, part, chunk, missing=size - done)
            done += len(chunk)
            report(done)
    if done < size:
        raise ConnectionError(f"the connection ended after {done} of {size} bytes")


def _starts_at(response: Any, offset: int) -> bool:
    if response.status != http.HTTPStatus.PARTIAL_CONTENT:
        return False
    found = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    if found is None or int(found[1]) != offset:
        raise _WrongContent(f"a part from another place than byte {offset}")
    return True


# -- the part file ---------------------------------------------------------------------------


@contextlib.contextmanager
def _opened(part: pathlib.Path) -> Iterator[IO[bytes]]:
    """The part file for appending, for this process alone as long as it lives."""
    while True:
        try:
            file = open(part, "ab")  # noqa: SIM115
        except OSError as error:
            raise SpiritlevelError(
                f"The file {str(part)!r} cannot be written: {error.strerror or error}. Give "
                "another folder, or set permissions there."
            ) from error
        with file:
            _lock(file, part)
            # The one who had the lock before may have given the file its final name meanwhile.
            if part.exists() and os.path.samestat(os.fstat(file.fileno()), part.stat()):
                yield file
                return


def _lock(file: IO[bytes], part: pathlib.Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise SpiritlevelError(
            f"The file {str(part)!r} is being fetched by another process. Wait until that is done."
        ) from error
    except OSError:
        pass  # some network file systems know no locks


def _length(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_size


def _empty(file: IO[bytes]) -> int:
    file.truncate(0)
    return 0


def _write(file: IO[bytes], part: pathlib.Path, chunk: bytes, *, missing: int) -> None:
    try:
        file.write(chunk)
        file.flush()  # so that what came is kept if this process is killed
    except OSError as error:
        raise _no_room(part, missing, str(error.strerror or error)) from error


def _check_room(part: pathlib.Path, missing: int) -> None:
    free = shutil.disk_usage(part.parent).free
    if free < missing:
        raise _no_room(part, missing, f"only {free} bytes are free")


def _no_room(part: pathlib.Path, missing: int, cause: str) -> SpiritlevelError:
    return SpiritlevelError(
        f"The file {str(part)!r} cannot be written: {cause}. {missing} bytes are still to come. "
        "What came is kept: make room there and run it again to go on, or give another folder."
    )
