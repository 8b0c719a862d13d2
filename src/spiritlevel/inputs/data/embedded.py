"""1,797 handwritten digits of 8×8 pixels, embedded in the package.

E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning
Repository, 1998, https://doi.org/10.24432/C50P49, licensed CC BY 4.0. These are the 1,797 images of
its test part in the order scikit-learn distributes them, unchanged but for the format: one byte a
pixel (0 to 16, row by row, image after image), then one byte a label, all of it gzipped.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import zlib
from importlib import resources

import torch
from torch import Tensor

from ...ground.errors import SpiritlevelError
from ...ground.need import need, one_of

SPLITS = ("train", "test", "all")
_FILE = "digits.bin.gz"
# Of the bytes inside the gzip, because zlib versions compress the same bytes differently.
_SHA256 = "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"
_NUM_IMAGES = 1797
_NUM_TEST = 500
_NUM_CLASSES = 10


def digits(split: str = "train", *, flat: bool = False, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images in [0, 1] as float32 and labels as int64.

    "train" has 1,297 images, "test" the other 500, every class in proportion, each in an order
    shuffled by `seed`; "all" has the 1,797 in stored order. `flat` gives (N, 64), not (N, 1, 8, 8).

    The writers of both splits are the same people: the test error is that of new digits, not of
    new hands.

    >>> x, y = digits("train", flat=True)
    >>> tuple(x.shape), float(x.min()), float(x.max()), y.dtype
    ((1297, 64), 0.0, 1.0, torch.int64)
    """
    check_split(split, of="digits")
    # frombuffer wants memory it may write to, and the cached bytes must stay as they are.
    raw = torch.frombuffer(bytearray(_raw()), dtype=torch.uint8)
    pixels, labels = raw[:-_NUM_IMAGES], raw[-_NUM_IMAGES:].long()
    images = pixels.view(_NUM_IMAGES, 1, 8, 8).float() / 16
    if split != "all":
        chosen = _split(labels, seed=seed)[split]
        images, labels = images[chosen], labels[chosen]
    return (images.flatten(1) if flat else images), labels


def check_split(split: object, *, of: str) -> None:
    """Refuse anything but "train", "test" and "all"."""
    then = "A validation set can be cut from 'train'."
    need("split", split, one_of(SPLITS), "'train', 'test' or 'all'", then, of=of)


@functools.cache
def _raw() -> bytes:
    return _unpack(resources.files("spiritlevel.inputs.data").joinpath(_FILE).read_bytes())


def _unpack(packed: bytes) -> bytes:
    """The pixel and label bytes, or an error if they are not the ones that were packed."""
    try:
        raw = gzip.decompress(packed)
    except (OSError, EOFError, zlib.error) as error:
        raise _corrupt(f"bytes that gzip cannot read ({error})") from error
    checksum = hashlib.sha256(raw).hexdigest()
    if checksum != _SHA256:
        raise _corrupt(f"SHA-256 {checksum}")
    return raw


def _corrupt(came: str) -> SpiritlevelError:
    return SpiritlevelError(
        f"The embedded data file {_FILE!r} must hold the digits with SHA-256 {_SHA256}. "
        f"Got {came}. "
        "The installation is damaged: pip install --force-reinstall --no-deps spiritlevel"
    )


def _split(labels: Tensor, *, seed: int) -> dict[str, Tensor]:
    """Indices of the two splits, each class cut in proportion and both splits shuffled."""
    generator = torch.Generator().manual_seed(seed)
    train, test = [], []
    for digit, quota in enumerate(_quotas(labels.bincount(minlength=_NUM_CLASSES).tolist())):
        members = (labels == digit).nonzero().squeeze(1)
        members = members[torch.randperm(len(members), generator=generator)]
        test.append(members[:quota])
        train.append(members[quota:])
    splits = {"train": torch.cat(train), "test": torch.cat(test)}
    return {k: x[torch.randperm(len(x), generator=generator)] for k, x in splits.items()}


def _quotas(counts: list[int]) -> list[int]:
    """Test images per class: in proportion, rounded by largest remainder so that they sum up."""
    total = sum(counts)
    quotas = [count * _NUM_TEST // total for count in counts]
    by_remainder = sorted(range(len(counts)), key=lambda c: -(counts[c] * _NUM_TEST % total))
    for digit in by_remainder[: _NUM_TEST - sum(quotas)]:
        quotas[digit] += 1
    return quotas
