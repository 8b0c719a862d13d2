"""One word for any data: a name, a kind with a path, or a file."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from ...ground.errors import SpiritlevelError, brief, suggestion
from .arrays import read_npz
from .catalogue import CATALOGUE, data_folder
from .cifar import read_cifar
from .digits import digits
from .folder import read_folder
from .idx import read_mnist

SPLITS = ("train", "test", "all")


def load(
    name_or_path: str, split: str = "train", *, size: int | tuple[int, int] | None = None
) -> tuple[Tensor, Tensor]:
    """Inputs and targets: "digits", a fetched data set, a kind with a path, or an .npz file.

    "mnist" is the copy that `spiritlevel data fetch mnist` made, "mnist:/path" your own; the same
    for fashion-mnist, cifar10 and cifar100. "folder:/path" is an image folder, which `size`
    resizes. Images are float32 in [0, 1], channels first; class labels are int64. The split "all"
    is train and test together.

    >>> x, y = load("digits", "test")
    >>> tuple(x.shape)
    (500, 1, 8, 8)
    """
    if not isinstance(name_or_path, str) or "\0" in name_or_path:
        raise SpiritlevelError(
            f"The data must be a name or a path, as a text. Got {brief(name_or_path)}. For example "
            "'digits', 'mnist' or 'mine.npz'."
        )
    if not isinstance(split, str) or split not in SPLITS:
        raise SpiritlevelError(
            f"The 'split' argument of load must be 'train', 'test' or 'all'. Got {brief(split)}. "
            "A validation set can be cut from 'train'."
        )
    kind, colon, path = name_or_path.partition(":")
    kind = kind.lower()
    path = os.path.expanduser(path)  # no shell does it behind a colon
    is_folder = kind == "folder" and bool(path)
    if size is not None and not is_folder:
        raise SpiritlevelError(
            f"The 'size' argument of load must be None unless the data are an image folder. "
            f"Got {brief(size)} for {name_or_path!r}. Give 'folder:/path', or leave it out."
        )
    if is_folder:
        return read_folder(path, split, size=size)
    if name_or_path == "digits":
        return digits(split)
    if kind in CATALOGUE and bool(colon) == bool(path):
        return _read_known(kind, path or _fetched(kind), split)
    if name_or_path.lower().endswith(".npz"):
        return read_npz(os.path.expanduser(name_or_path), split)
    raise _unknown(name_or_path, kind)


def _read_known(name: str, path: str, split: str) -> tuple[Tensor, Tensor]:
    if split == "all":
        parts = [_read_known(name, path, part) for part in ("train", "test")]
        x, y = (torch.cat(both) for both in zip(*parts, strict=True))
        return x, y
    if name.endswith("mnist"):
        return read_mnist(path, split, name=name)
    return read_cifar(path, split, name=name.removesuffix("-python"))


def _fetched(name: str) -> str:
    folder = data_folder() / name
    if not folder.is_dir():
        raise SpiritlevelError(
            f"The data set {name!r} must be fetched first. There is no folder {str(folder)!r}. "
            f"Run `spiritlevel data fetch {name}` ({CATALOGUE[name].size / 1e6:.0f} MB), or give "
            f"the path of your own copy: '{name}:/path'."
        )
    return str(folder)


def _unknown(name_or_path: str, kind: str) -> SpiritlevelError:
    names = ("digits", *CATALOGUE, "folder")
    hint = suggestion(kind, names, most=1)
    return SpiritlevelError(
        f"The data must be 'digits' (embedded), one of {', '.join(CATALOGUE)} (fetched, or with a "
        "path: 'mnist:/path'), 'folder:/path' (images, a folder a class) or a path ending in .npz "
        f"(arrays x and y). Got {brief(name_or_path)}.{hint} "
        "Other data: numpy.savez('data.npz', x=inputs, y=targets), "
        "or pass your own loader to spiritlevel.measure from Python."
    )
