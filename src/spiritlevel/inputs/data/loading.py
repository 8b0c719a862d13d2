"""One word for any data: a name, a kind with a path, or a file.

Whole, or some samples of it in batches, with the attention mask where the data has one.
"""

from __future__ import annotations

import os
import zipfile
from typing import Any

import torch
from torch import Tensor, nn

from ...ground.errors import SpiritlevelError, brief, require, suggestion
from ...ground.files import as_path
from ...ground.files.reading import check_unpacked
from ...model.batches import map_tensors
from ..models.published import is_causal, tokenizer_of
from .arrays import read_npz
from .catalogue import CATALOGUE, data_folder
from .cifar import read_cifar
from .embedded import check_split, digits
from .folder import read_folder
from .idx import read_mnist
from .texts import read_labelled_text, read_text

Inputs = Tensor | dict[str, Tensor]  # a dict with the mask, where the data has one
KEY = "attention_mask"
TEXT = ("text:", "jsonl:")


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
    check_split(split, of="load")
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
        "(arrays x and y); for a model of transformers also text:FILE.txt or jsonl:FILE.jsonl. "
        f"Got {brief(name_or_path)}.{hint} "
        "Other data: numpy.savez('data.npz', x=inputs, y=targets), "
        "or pass your own loader to spiritlevel.measure from Python."
    )


def load_samples(
    name: str,
    *,
    split: str = "train",
    samples: int | None = None,
    seed: int = 0,
    model: nn.Module | None = None,
    block: int | None = None,
) -> tuple[Inputs, Tensor, str]:
    """Inputs, targets and a description; at most `samples` of them, drawn at random.

    A text is read for `model`, by its tokenizer, in blocks of `block` tokens.
    """
    x, y = _inputs(name, split, model, block)
    whole = f"samples of {name} ({split})" if name == "digits" else f"samples of {name}"
    origin = f"{len(y)} {whole}"
    if samples is not None and samples < len(y):
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(len(y), generator=generator)[:samples].sort().values
        origin = f"{samples} of {len(y)} {whole}, drawn with seed {seed}"
        x, y = map_tensors(lambda t: t[chosen], (x, y))
    if name.startswith(TEXT) and y.dim() > 1:
        origin = f"{origin}, of {y.shape[1]} tokens each"
    is_masked = isinstance(x, dict) and KEY in x
    return x, y, f"{origin}, with an attention mask" if is_masked else origin


def _inputs(
    name: str, split: str, model: nn.Module | None, block: int | None
) -> tuple[Inputs, Tensor]:
    """All of them, with their attention mask where there is one."""
    if name.startswith(TEXT):
        return _of_text(name, split, model, block)
    if block is not None:
        raise SpiritlevelError(
            "The 'block' argument, or --block, must be left out unless the data are a text. Got "
            f"{brief(block)} for {name!r}. Give text:FILE.txt, or leave it out."
        )
    x, y = load(name, split)
    if not name.lower().endswith(".npz"):
        return x, y
    mask = read_attention_mask(os.path.expanduser(name), split, x)
    return (x, y) if mask is None else ({"input_ids": x, KEY: mask}, y)


def _of_text(
    name: str, split: str, model: nn.Module | None, block: int | None
) -> tuple[Inputs, Tensor]:
    """Blocks for a causal language model, labelled texts for any other one."""
    kind, _, path = name.partition(":")
    path = os.path.expanduser(path)
    if split == "test":
        raise SpiritlevelError(
            f"The 'split' argument must be 'train' or 'all' for {name!r}: a file of text is one "
            "whole. Got 'test'. Leave --split out, or name another file."
        )
    if kind == "jsonl" and not path.lower().endswith(".jsonl"):
        raise SpiritlevelError(
            "The data of 'jsonl' must be a file that ends in .jsonl, with one JSON object a line. "
            f"Got {brief(name)}. A plain text is given as text:FILE.txt."
        )
    if model is None:
        raise SpiritlevelError(
            f"Text needs a model, whose tokenizer reads it. Got {name!r} without one. Give "
            "--model hf:FOLDER; in Python, call read_text with a tokenizer."
        )
    tokenizer = tokenizer_of(model)
    if is_causal(model):
        return read_text(path, tokenizer, block=block)
    if kind == "text" or block is not None:
        raise SpiritlevelError(
            "Blocks of text need a causal language model, such as GPT2LMHeadModel. Got "
            f"{type(model).__name__}. For a classifier of texts, give jsonl:FILE.jsonl, whose "
            'lines are {"text": ..., "label": ...}, and no --block.'
        )
    config: Any = model.config
    return read_labelled_text(path, tokenizer, classes=getattr(config, "label2id", None))


def in_batches(x: Inputs, y: Tensor, size: int) -> list[tuple[Any, Tensor]]:
    """Pairs of inputs and targets, `size` samples at a time."""
    targets = y.split(size)
    if isinstance(x, Tensor):
        return list(zip(x.split(size), targets, strict=True))
    parts = [part.split(size) for part in x.values()]
    inputs = (dict(zip(x, each, strict=True)) for each in zip(*parts, strict=True))
    return list(zip(inputs, targets, strict=True))


def read_attention_mask(path: str | os.PathLike[str], split: str, x: Tensor) -> Tensor | None:
    """The mask that goes with the inputs `x` of `read_npz`, or None if the file has none.

    It is named `attention_mask`, or `attention_mask_train` and `attention_mask_test` beside such
    inputs.
    """
    numpy = require("numpy", what="Reading .npz files", extra="cli")
    name = os.fspath(as_path(path, what="data file"))
    with zipfile.ZipFile(name) as archive:
        there = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        parts = ("train", "test") if split == "all" else (split,)
        keys = [KEY] if KEY in there else [f"{KEY}_{part}" for part in parts]
        found = [key for key in keys if key in there]
        if not found:
            return None
        unpacked = sum(there[key].file_size for key in found)
        advice = "Save it without compression: numpy.savez(path, ...)."
        check_unpacked(name, unpacked, packed=os.path.getsize(name), advice=advice)
        arrays = []
        for key in found:
            with archive.open(there[key]) as file:
                try:
                    arrays.append(numpy.lib.format.read_array(file, allow_pickle=False))
                except ValueError as error:
                    raise _refusal(name, f"what numpy cannot read: {error}") from error
    if any(array.dtype.kind not in "biu" for array in arrays):
        raise _refusal(name, f"dtype {arrays[0].dtype}")
    mask = torch.cat([torch.from_numpy(array.astype(numpy.int64)) for array in arrays])
    if mask.shape != x.shape or not bool(((mask == 0) | (mask == 1)).all()):
        raise _refusal(name, f"shape {tuple(mask.shape)} for inputs of {tuple(x.shape)}")
    return mask


def _refusal(name: str, came: str) -> SpiritlevelError:
    return SpiritlevelError(
        f"The array {KEY} of {name!r} must hold 0 and 1 in the shape of the token ids x. Got "
        f"{came}. Save what the tokenizer returned: numpy.savez(path, x=tokens['input_ids'], "
        f"{KEY}=tokens['{KEY}'], y=labels)."
    )
