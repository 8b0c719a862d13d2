"""Data sets that need no download, readers for public ones and a user's own, and their download."""

from __future__ import annotations

from typing import TYPE_CHECKING as _TYPE_CHECKING

from ...ground.lazy import lazy as _lazy

if _TYPE_CHECKING:
    from .arrays import read_npz as read_npz
    from .catalogue import CATALOGUE as CATALOGUE
    from .catalogue import data_folder as data_folder
    from .catalogue import fetch as fetch
    from .cifar import read_cifar as read_cifar
    from .embedded import digits as digits
    from .folder import read_folder as read_folder
    from .idx import read_mnist as read_mnist
    from .loading import load as load
    from .texts import read_labelled_text as read_labelled_text
    from .texts import read_text as read_text

_HOMES = {
    "read_npz": ".arrays",
    "CATALOGUE": ".catalogue",
    "data_folder": ".catalogue",
    "fetch": ".catalogue",
    "read_cifar": ".cifar",
    "digits": ".embedded",
    "read_folder": ".folder",
    "read_mnist": ".idx",
    "load": ".loading",
    "read_labelled_text": ".texts",
    "read_text": ".texts",
}
__getattr__, __dir__ = _lazy(__name__, _HOMES)
