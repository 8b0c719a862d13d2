"""Data sets that need no download, and readers for a user's own files."""

from __future__ import annotations

from torch import Tensor

from .._core import SpiritlevelError
from .arrays import read_npz
from .digits import digits

__all__ = ["digits", "load", "read_npz"]


def load(name_or_path: str, split: str = "train") -> tuple[Tensor, Tensor]:
    """Inputs and targets from an embedded data set or an .npz file.

    An .npz file is one whole set: of it, "train" and "all" both mean everything.

    >>> x, y = load("digits", "test")
    >>> tuple(x.shape)
    (500, 1, 8, 8)
    """
    if name_or_path == "digits":
        return digits(split)
    if name_or_path.lower().endswith(".npz"):
        if split not in ("train", "all"):
            raise SpiritlevelError(
                f"The 'split' argument of load must be 'train' or 'all' for an .npz file, which "
                f"holds one set. Got {split!r} for {name_or_path!r}. "
                "Save that split to an .npz file of its own and give its path."
            )
        return read_npz(name_or_path)
    raise SpiritlevelError(
        "The data must be 'digits' (embedded) or a path ending in .npz (arrays x and y). "
        f"Got {name_or_path!r}. Other data: numpy.savez('data.npz', x=inputs, y=targets), "
        "or pass your own loader to spiritlevel.measure from Python."
    )
