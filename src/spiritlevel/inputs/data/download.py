"""Download one file from one of several addresses, resume if interrupted, and verify it.

The bytes go to NAME.part. That file stays whatever happens (a lost connection, a full disk, Ctrl-C,
kill), and the next call asks only for the rest. If the checksum is wrong it is removed; if it is
right it becomes NAME in one step. Written by hand because pooch cannot resume a download.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import pathlib
import re
import shutil
import stat
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

from ...ground.errors import SpiritlevelError
from ...ground.version import __version__

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

ATTEMPTS = 4  # at one address, in a row and without a byte more than before
TIMEOUT = 30.0  # seconds without a byte
_CHUNK, _HASHED_AT_ONCE = 2**17, 2**20  # bytes
_PASSING = (408, 425, 429)  # and all from 500 on: the server may answer better in a moment
_sleep = time.sleep
# Through no link at the end of the path, and without waiting at a pipe. Windows lacks these flags.
_APPENDING = (
    os.O_WRONLY
    | os.O_APPEND
    | os.O_CREAT
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_BINARY", 0)
)


class _GivenUp(Exception):
    """The file cannot be fetched from this address; the text says why."""


class _WrongContent(_GivenUp):
    """The server sent something else than the file."""


def download(
    path: pathlib.Path,
    urls: Sequence[str],
    *,
    size: int,
    checksum: str,
    report: Callable[[int], None],
) -> None:
    """Download the file from the first address that delivers it completely and correctly.

    Raises SpiritlevelError that says what failed at each address.
    """
    part = path.with_name(f"{path.name}.part")
    with _opened(part) as file:
        if path.is_file() and has_checksum(path, checksum):  # another process was faster
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
        num_received = _length(file)
        if not num_received:
            part.unlink()
    state = (
        f"{num_received} of {size} bytes are kept in {str(part)!r}: run it again to continue"
        if num_received
        else "No part was kept. Try again later"
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
    """Complete the part file; if an older part leads to a wrong checksum, start again once."""
    for begun in (_length(file), 0):
        _complete(file, part, url, size=size, report=report)
        received = file_checksum(part, checksum.partition(":")[0])
        if received == checksum:
            return
        _empty(file)
        if not begun:
            break
    raise _WrongContent(
        f"wrong checksum: expected {checksum}, got {received}; the file was removed"
    )


def _complete(
    file: IO[bytes], part: pathlib.Path, url: str, *, size: int, report: Callable[[int], None]
) -> None:
    failures, best = 0, _length(file)
    while _length(file) != size:
        try:
            _continue(file, part, url, size=size, report=report)
        except urllib.error.HTTPError as error:
            reason = f"HTTP status {error.code} {error.reason}"
            error.close()
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                _empty(file)  # our part is longer than their file
            elif error.code < 500 and error.code not in _PASSING:
                raise _GivenUp(reason) from error
        except _WrongContent:
            _empty(file)
            raise
        except (OSError, http.client.HTTPException) as error:  # URLError and timeouts are OSErrors
            reason = f"{getattr(error, 'reason', error) or type(error).__name__}"
        else:
            continue
        # A server that always breaks off at the same byte must not keep us here forever.
        failures = 1 if _length(file) > best else failures + 1
        best = max(best, _length(file))
        if failures == ATTEMPTS:
            raise _GivenUp(f"{reason} ({ATTEMPTS} times in a row)")
        _sleep(2 ** (failures - 1))


def _continue(
    file: IO[bytes], part: pathlib.Path, url: str, *, size: int, report: Callable[[int], None]
) -> None:
    if (done := _length(file)) > size:
        done = _empty(file)
    if (free := shutil.disk_usage(part.parent).free) < size - done:
        raise _no_room(part, size - done, f"only {free} bytes are free")
    headers = {"User-Agent": f"spiritlevel/{__version__}", "Accept-Encoding": "identity"}
    if done:
        headers["Range"] = f"bytes={done}-"
    with urllib.request.urlopen(
        urllib.request.Request(url, headers=headers), timeout=TIMEOUT
    ) as response:
        if done and not _starts_at(response, done):  # the server cannot resume: start again
            done = _empty(file)
        length = response.headers.get("Content-Length", "")
        if length.isdecimal() and done + int(length) != size:
            raise _WrongContent(f"{done + int(length)} bytes instead of {size}: not this file")
        while chunk := response.read(_CHUNK):
            if done + len(chunk) > size:
                raise _WrongContent(f"more than {size} bytes: not this file")
            try:
                file.write(chunk)
                file.flush()  # so that the bytes are kept if this process is killed
            except OSError as error:
                raise _no_room(part, size - done, str(error.strerror or error)) from error
            done += len(chunk)
            report(done)
    if done < size:
        raise ConnectionError(f"the connection ended after {done} of {size} bytes")


def _starts_at(response: Any, offset: int) -> bool:
    if response.status != http.HTTPStatus.PARTIAL_CONTENT:
        return False
    start = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    if start is None or int(start[1]) != offset:
        raise _WrongContent(f"the server's part does not start at byte {offset}")
    return True


# -- the part file ---------------------------------------------------------------------------


@contextlib.contextmanager
def _opened(part: pathlib.Path) -> Iterator[IO[bytes]]:
    """The part file, open for appending and locked for this process."""
    while True:
        try:
            file = _open(part)
        except OSError as error:
            raise SpiritlevelError(
                f"The file {str(part)!r} cannot be written: {error.strerror or error}. Give "
                "another folder, or set permissions there."
            ) from error
        with file:
            _lock(file, part)
            # The process that had the lock before may have renamed the file in the meantime.
            if part.exists() and os.path.samestat(os.fstat(file.fileno()), part.stat()):
                yield file
                return


def _open(part: pathlib.Path) -> IO[bytes]:
    """Refuse a link, pipe or device in place of the part file: the bytes would go elsewhere."""
    refusal = OSError(None, "it is a link to another file, or no file. Remove it")
    if part.is_symlink():
        raise refusal
    file = open(os.open(part, _APPENDING, 0o666), "ab")  # noqa: SIM115
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        file.close()
        raise refusal
    return file


def _lock(file: IO[bytes], part: pathlib.Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise SpiritlevelError(
            f"The file {str(part)!r} is being fetched by another process. Wait for it to end."
        ) from error
    except OSError:
        pass  # some network file systems have no locks


def _length(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_size


def _empty(file: IO[bytes]) -> int:
    file.truncate(0)
    return 0


def _no_room(part: pathlib.Path, missing: int, cause: str) -> SpiritlevelError:
    return SpiritlevelError(
        f"The file {str(part)!r} cannot be written: {cause}. {missing} bytes are still to come. "
        "The part received is kept: free some space and run it again, or give another folder."
    )


def has_checksum(path: str | os.PathLike[str], checksum: str) -> bool:
    """Whether the file hashes to "sha256:..." or "md5:..."."""
    return file_checksum(path, checksum.partition(":")[0]) == checksum


def file_checksum(path: str | os.PathLike[str], algorithm: str) -> str:
    """The file's hash, as `algorithm:digits`."""
    # Machines with hardened crypto refuse MD5 unless told that nothing secret hangs on it.
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with open(path, "rb") as file:
        while chunk := file.read(_HASHED_AT_ONCE):
            digest.update(chunk)
    return f"{algorithm}:{digest.hexdigest()}"
