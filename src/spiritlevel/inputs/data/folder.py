"""Image folders: one folder a class, or train/ and test/ with one folder a class in each."""

from __future__ import annotations

import math
import os
import pathlib
from typing import Any

import torch
from torch import Tensor

from ...ground.errors import SpiritlevelError, brief, require
from ...ground.need import need

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
SPLITS = ("train", "test")
MAX_PIXELS = 2**26  # of one image: 8,192 × 8,192
_GREY = ("1", "L", "LA")
_COLOURS = ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV")


def read_folder(
    path: str | os.PathLike[str],
    split: str = "train",
    *,
    size: int | tuple[int, int] | None = None,
) -> tuple[Tensor, Tensor]:
    """Images (N, channels, height, width) as float32 in [0, 1] and labels as int64.

    Classes are numbered in the order of their names, over both splits together. A folder without
    train/ and test/ is one whole set: of it, "train" and "all" both mean everything. If all images
    are grey there is one channel, else three; transparency is dropped. `size` (or (height, width))
    resizes; without it all images must have the same size. Other files beside the images are left
    alone.
    """
    pillow = require("PIL.Image", what="Reading image folders", extra="images")
    root = pathlib.Path(path)
    tops = _tops(root, split)
    classes = sorted({inner.name for top in _all_tops(root) for inner in _folders(top)})
    if not classes:
        raise SpiritlevelError(
            f"The image folder {str(root)!r} must have one folder a class, with images in it. "
            "Got none. Sort the images into folders: cat/1.png, dog/2.png, ..."
        )
    wanted = _height_width(size)
    images, labels, first = [], [], None
    for top in tops:
        for label, name in enumerate(classes):
            for file in _images(top / name):
                image = _read(pillow, file, wanted)
                first = first or (file, image.shape)
                if image.shape[1:] != first[1][1:]:
                    raise SpiritlevelError(
                        f"The images of {str(root)!r} must have one size. Got "
                        f"{_by(first[1])} ({str(first[0])!r}) and {_by(image.shape)} "
                        f"({str(file)!r}). Give size=, for example size={min(image.shape[1:])}."
                    )
                images.append(image)
                labels.append(label)
    if not images:
        raise SpiritlevelError(
            f"The image folder {str(root)!r} must have images ({', '.join(ENDINGS)}) for the split "
            f"{split!r}. Got none in {', '.join(repr(str(top)) for top in tops)}. Check the path."
        )
    channels = max(len(image) for image in images)
    x = torch.stack([image.expand(channels, -1, -1) for image in images])
    return x.float().div_(255), torch.tensor(labels)


def _tops(root: pathlib.Path, split: str) -> list[pathlib.Path]:
    """The folders whose folders are the classes of this split."""
    if not root.is_dir():
        came = "a file" if root.exists() else "nothing there"
        raise SpiritlevelError(
            "The data of 'folder' must be a folder with one folder a class. Got "
            f"{brief(str(root))}: {came}. Check the path."
        )
    tops = _all_tops(root)
    if split == "all" or (tops == [root] and split == "train"):
        return tops
    if root / split in tops:
        return [root / split]
    raise SpiritlevelError(
        f"The 'split' argument of load must be 'train' or 'all' for the folder {str(root)!r}, "
        f"which has no folder {split!r}. Got {brief(split)}. Put the classes into "
        f"{str(root / 'train')!r} and {str(root / 'test')!r}, or give another path."
    )


def _all_tops(root: pathlib.Path) -> list[pathlib.Path]:
    return [root / split for split in SPLITS if (root / split).is_dir()] or [root]


def _folders(top: pathlib.Path) -> list[pathlib.Path]:
    return [entry for entry in top.iterdir() if entry.is_dir() and not entry.name.startswith(".")]


def _images(folder: pathlib.Path) -> list[pathlib.Path]:
    if not folder.is_dir():  # a class of the other split
        return []
    entries = (entry for entry in folder.iterdir() if not entry.name.startswith("."))
    return sorted(entry for entry in entries if entry.suffix.lower() in ENDINGS)


def _read(pillow: Any, file: pathlib.Path, size: tuple[int, int] | None) -> Tensor:
    try:
        with pillow.open(file) as image:
            if image.mode not in _GREY + _COLOURS:
                raise SpiritlevelError(
                    f"The image {str(file)!r} must have 8 bits a channel. Got mode {image.mode!r}. "
                    "Scale it to 8 bits first, or save all images as an .npz file of floats."
                )
            if math.prod(image.size) > MAX_PIXELS:  # before it is unpacked
                raise SpiritlevelError(
                    f"The image {str(file)!r} must have at most {MAX_PIXELS:,} pixels. Got "
                    f"{image.size[0]}×{image.size[1]}. Make it smaller, or remove it."
                )
            image = image.convert("L" if image.mode in _GREY else "RGB")
            if size is not None:
                image = image.resize((size[1], size[0]), pillow.Resampling.BILINEAR)
            values = bytearray(image.tobytes())
            width, height = image.size
    except SpiritlevelError:
        raise
    except Exception as error:  # decoders raise nearly anything on damaged files
        raise SpiritlevelError(
            f"The image {str(file)!r} cannot be read: {type(error).__name__}: {error}. "
            f"It has {file.stat().st_size} bytes. Replace or remove it."
        ) from error
    return torch.frombuffer(values, dtype=torch.uint8).view(height, width, -1).permute(2, 0, 1)


def _height_width(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    if size is None:
        return None
    pair = size if isinstance(size, tuple) else (size, size)
    fits = len(pair) == 2 and all(isinstance(n, int) and n > 0 for n in pair)
    wanted = "a positive integer or (height, width)"
    need("size", size, lambda _: fits, wanted, "For example size=32.")
    return pair


def _by(shape: torch.Size) -> str:
    return f"{shape[1]}×{shape[2]}"
