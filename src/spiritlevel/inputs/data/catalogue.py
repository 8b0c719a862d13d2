"""The public data sets: where they lie, how long they are, what they hash to, and fetching them.

Checksums are SHA-256 where one is known from several independent places, else the MD5 that the
publisher states. MD5 finds accidents, not forgeries.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import sys
import urllib.parse
from collections.abc import Sequence

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
    sources: tuple[str, ...]  # addresses to which a file's name is appended; the first that works
    files: tuple[RemoteFile, ...]

    @property
    def size(self) -> int:
        """Bytes to download."""
        return sum(file.size for file in self.files)


_MNIST = DataSet(
    "mnist",
    "70,000 handwritten digits, 28×28 grey, 10 classes",
    "LeCun, Cortes and Burges 1998",
    (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "http://yann.lecun.com/exdb/mnist/",
    ),
    (
        RemoteFile(
            "train-images-idx3-ubyte.gz",
            9_912_422,
            "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        ),
        RemoteFile(
            "train-labels-idx1-ubyte.gz",
            28_881,
            "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        ),
        RemoteFile(
            "t10k-images-idx3-ubyte.gz",
            1_648_877,
            "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        ),
        RemoteFile(
            "t10k-labels-idx1-ubyte.gz",
            4_542,
            "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
)

_FASHION_MNIST = DataSet(
    "fashion-mnist",
    "70,000 pieces of clothing, 28×28 grey, 10 classes",
    "Zalando Research 2017, MIT licence",
    (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
    (
        RemoteFile(
            "train-images-idx3-ubyte.gz", 26_421_880, "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d"
        ),
        RemoteFile("train-labels-idx1-ubyte.gz", 29_515, "md5:25c81989df183df01b3e8a0aad5dffbe"),
        RemoteFile("t10k-images-idx3-ubyte.gz", 4_422_102, "md5:bef4ecab320f06d8554ea6380940ec79"),
        RemoteFile("t10k-labels-idx1-ubyte.gz", 5_148, "md5:bb300cfdad3c16e7a12a480ee83cd310"),
    ),
)

_CIFAR_ORIGIN = "Krizhevsky 2009, for research use with citation"
_CIFAR_SOURCES = ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/")
_CIFAR10 = "60,000 photographs, 32×32 RGB, 10 classes"
_CIFAR100 = "60,000 photographs, 32×32 RGB, 100 classes in 20 groups"


def _cifar(name: str, summary: str, file: RemoteFile) -> DataSet:
    return DataSet(name, summary, _CIFAR_ORIGIN, _CIFAR_SOURCES, (file,))


CATALOGUE = {
    data.name: data
    for data in (
        _MNIST,
        _FASHION_MNIST,
        _cifar(
            "cifar10",
            _CIFAR10,
            RemoteFile(
                "cifar-10-binary.tar.gz",
                170_052_171,
                "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            ),
        ),
        _cifar(
            "cifar10-python",
            f"{_CIFAR10} (the same as pickles)",
            RemoteFile(
                "cifar-10-python.tar.gz",
                170_498_071,
                "sha256:6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            ),
        ),
        _cifar(
            "cifar100",
            _CIFAR100,
            RemoteFile(
                "cifar-100-binary.tar.gz", 168_513_733, "md5:03b5dce01913d631647c71ecec9e9cb8"
            ),
        ),
        _cifar(
            "cifar100-python",
            f"{_CIFAR100} (the same as pickles)",
            RemoteFile(
                "cifar-100-python.tar.gz", 169_001_437, "md5:eb9058c3a382ffc7106e4002c42a8d85"
            ),
        ),
    )
}


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
