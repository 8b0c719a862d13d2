"""Whether a file is the one that was published."""

from __future__ import annotations

import hashlib
import os

_CHUNK = 2**20


def has_checksum(path: str | os.PathLike[str], checksum: str) -> bool:
    """Whether the file hashes to "sha256:..." or "md5:..."."""
    return file_checksum(path, checksum.partition(":")[0]) == checksum


def file_checksum(path: str | os.PathLike[str], algorithm: str) -> str:
    """The file's hash, as `algorithm:digits`."""
    # Machines with hardened crypto refuse MD5 unless told that nothing secret hangs on it.
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return f"{algorithm}:{digest.hexdigest()}"
