"""Data sets that need no download, readers for public ones and a user's own, and their download."""

from __future__ import annotations

from .arrays import read_npz
from .catalogue import CATALOGUE, data_folder, fetch
from .cifar import read_cifar
from .digits import digits
from .folder import read_folder
from .idx import read_mnist
from .loading import load
from .texts import read_labelled_text, read_text

__all__ = [
    "CATALOGUE",
    "data_folder",
    "digits",
    "fetch",
    "load",
    "read_cifar",
    "read_folder",
    "read_labelled_text",
    "read_mnist",
    "read_npz",
    "read_text",
]
