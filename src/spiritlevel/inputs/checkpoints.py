"""Checkpoints in and out: safetensors, or torch state dicts that hold nothing but tensors.

One file, or a folder as `save_pretrained` of Hugging Face writes it. Nothing in a file is ever
executed. A model is loaded completely or not at all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import pathlib
import pickle
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..ground.errors import SpiritlevelError, require
from ..ground.files import as_path, write_atomically
from ..ground.files.reading import load_torch_file
from ..model.arguments import check_network
from ..records.reading import Misread, parse_json

CONTAINERS = ("state_dict", "model_state_dict", "model")  # under which frameworks nest the weights
PREFIXES = ("module.", "model.", "_orig_mod.")  # DistributedDataParallel, Lightning, torch.compile
MAX_LISTED = 5  # names of each kind in an error
MAX_DEPTH = 8  # containers in containers; a file may contain itself


@dataclasses.dataclass(frozen=True)
class Loaded:
    """What was done to make a checkpoint fit."""

    path: str
    num_tensors: int
    container: str  # "" if the tensors stood at the top, else for example "state_dict"
    prefix: str  # "" if the names fitted as they were, else for example "module."

    def __str__(self) -> str:
        parts = [f"{self.num_tensors} tensors"]
        if self.container:
            parts.append(f"found under {self.container!r}")
        if self.prefix:
            parts.append(f"prefix {self.prefix!r} removed")
        return f"{self.path} ({', '.join(parts)})"


def load_checkpoint(
    model: nn.Module, path: str | os.PathLike[str], *, keep: str | None = None
) -> Loaded:
    """Copy the weights of a file into `model`; every tensor must fit, by name and by shape.

    Weights nested under 'state_dict', 'model_state_dict' or 'model' are found; the prefixes of
    DistributedDataParallel, Lightning and torch.compile, or of the attribute of a LightningModule
    that holds the network, are removed where that makes all names fit. A folder that Hugging Face's
    `save_pretrained` wrote is read as a whole.
    The module named by `keep`, such as a head for other classes, stays as it is in `model`.
    """
    check_network("load_checkpoint", model)
    return load_weights(model, os.fspath(as_path(path, what="checkpoint")), keep=keep)


def load_weights(model: nn.Module, name: str, *, keep: str | None = None) -> Loaded:
    """As `load_checkpoint`, where it is known that this is a network and the name of a file."""
    tensors, container = _read_all(name)
    wanted = _tensors_of(model)
    prefix = _choose_prefix(tensors, wanted)
    renamed = {key.removeprefix(prefix): value for key, value in tensors.items()}
    if renamed.keys() - wanted and (read := renamed_by_transformers(model, name, tensors)):
        prefix, renamed = "", read
    if keep is not None:
        renamed, wanted = (
            {key: value for key, value in each.items() if not key.startswith(f"{keep}.")}
            for each in (renamed, wanted)
        )
    _add_tied(renamed, wanted)
    _check_fit(renamed, wanted, name)
    try:
        # Not strict: those checks were just made, with better words.
        model.load_state_dict(renamed, strict=False)
    except Exception as error:  # whatever torch raises for tensors that it cannot copy
        raise _damaged(name, "weights of this model", error) from error
    return Loaded(name, len(tensors), container, prefix)


def _read_all(name: str) -> tuple[dict[str, Tensor], str]:
    """The tensors of a file, or of all files in a folder, and under which keys they stood."""
    tensors: dict[str, Tensor] = {}
    container = ""
    for file in files_in(name):
        more, container = _find_tensors(_read(file), file)
        tensors |= more
    return tensors, container


def save_checkpoint(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write the weights as safetensors; a tensor that has several names is stored once."""
    check_network("save_checkpoint", model)
    write_atomically(path, checkpoint_bytes(model))


def checkpoint_bytes(model: nn.Module) -> bytes:
    """The content of a safetensors file with the model's weights."""
    safetensors = require("safetensors.torch", what="Writing .safetensors files", extra="cli")
    state = _tensors_of(model)
    first = {id(tensor): key for key, tensor in reversed(state.items())}
    data: bytes = safetensors.save(
        {key: state[key].detach().cpu().contiguous() for key in sorted(first.values())}
    )
    return data


def _tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name; extra state that modules keep is not weights."""
    state = model.state_dict(keep_vars=True)
    return {key: value for key, value in state.items() if isinstance(value, Tensor)}


# -- reading ---------------------------------------------------------------------------------


def _read(name: str) -> object:
    try:
        mode = os.stat(name).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # a pipe or device may never end
            raise OSError(None, "it is not a file")
        with open(name, "rb") as file:
            start = file.read(9)
    except FileNotFoundError as error:
        raise SpiritlevelError(
            f"The checkpoint {name!r} must exist. There is no such file in {os.getcwd()!r}. "
            "Check the path."
        ) from error
    except OSError as error:  # a folder, or no permission
        raise SpiritlevelError(
            f"The checkpoint {name!r} cannot be opened: {error.strerror}. Give the path of one "
            ".safetensors, .pt or .pth file that you may read."
        ) from error
    # By content: files are renamed more often than they are converted.
    is_torch = start.startswith((b"PK", b"\x80"))
    if not is_torch and (start[8:] == b"{" or name.endswith(".safetensors")):
        return _read_safetensors(name)
    return _read_torch(name)


def _read_safetensors(name: str) -> object:
    safetensors = require("safetensors.torch", what="Reading .safetensors files", extra="cli")
    try:
        return safetensors.load_file(name, device="cpu")
    except Exception as error:  # its error class derives from Exception itself
        raise _damaged(name, "a safetensors file", error) from error


def _read_torch(name: str) -> object:
    try:
        with open(name, "rb") as file:  # given a name, torch would go by its ending
            return load_torch_file(file, what=repr(name))
    except SpiritlevelError:
        raise
    except pickle.UnpicklingError as error:
        text = str(error)
        if "Weights only load failed" in text and "GLOBAL" in text:
            python_object = re.search(r"GLOBAL ([\w.]+)", text)
            what = f" ({python_object.group(1)})" if python_object else ""
            raise SpiritlevelError(
                f"The checkpoint {name!r} was refused: it holds Python objects beside tensors"
                f"{what}, and reading those would run code from the file. Where you trust it, save "
                "the weights alone: torch.save(model.state_dict(), path)."
            ) from error
        raise _damaged(name, "a torch checkpoint", error) from error
    except Exception as error:  # torch's reader raises nearly anything on damaged bytes
        raise _damaged(name, "a torch checkpoint", error) from error


def _damaged(name: str, kind: str, error: Exception) -> SpiritlevelError:
    size = os.path.getsize(name)
    cause = (str(error) or type(error).__name__).strip().splitlines()[0].rstrip(".")
    return SpiritlevelError(
        f"The checkpoint {name!r} cannot be read as {kind}: it is damaged, cut short or something "
        f"else ({size} bytes; {cause}). Copy or save it again."
    )


def _find_tensors(content: object, name: str) -> tuple[dict[str, Tensor], str]:
    """The mapping of names to tensors, and under which keys it stood."""
    path: list[str] = []
    while isinstance(content, Mapping) and len(path) < MAX_DEPTH:
        tensors = {str(k): v for k, v in content.items() if isinstance(v, Tensor)}
        nested = [key for key in CONTAINERS if isinstance(content.get(key), Mapping)]
        if tensors and not nested:
            return tensors, ".".join(path)
        if not nested:
            break
        path.append(nested[0])
        content = content[nested[0]]
    if isinstance(content, Mapping):
        keys = ", ".join(map(repr, list(content)[:MAX_LISTED])) or "nothing"
        came = f"a dict with {keys}" + (f" under {'.'.join(path)!r}" if path else "")
    else:
        came = f"an object of type {type(content).__name__}"
    raise SpiritlevelError(
        f"The checkpoint {name!r} must hold a dict of tensors, at the top or under one of "
        f"{', '.join(map(repr, CONTAINERS))}. Got {came}. Save model.state_dict()."
    )


# -- fitting ---------------------------------------------------------------------------------


def _prefixes(tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> Iterator[str]:
    """Known prefixes, then any attribute that holds all of the model, such as "net."."""
    yield ""
    yield from PREFIXES
    yield from map("".join, itertools.permutations(PREFIXES, 2))
    first = next(iter(wanted), "")
    for key in tensors:
        prefix = key.removesuffix(first)
        if key != prefix and all(f"{prefix}{name}" in tensors for name in wanted):
            yield prefix


def _choose_prefix(tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> str:
    """The prefix without which all names fit; failing that the one that brings most together."""

    def fitting(prefix: str) -> int:
        if not all(key.startswith(prefix) for key in tensors):
            return -1
        return sum(key.removeprefix(prefix) in wanted for key in tensors)

    return max(
        _prefixes(tensors, wanted), key=fitting
    )  # of equals the first, so the names stay if they can


def _add_tied(tensors: dict[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Files of safetensors keep one name of a tensor that has several; give it the others back."""
    by_id = {id(wanted[key]): value for key, value in tensors.items() if key in wanted}
    for key, tensor in wanted.items():
        if key not in tensors and id(tensor) in by_id:
            tensors[key] = by_id[id(tensor)]


def _check_fit(tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor], name: str) -> None:
    missing = [key for key in wanted if key not in tensors]
    unexpected = [key for key in tensors if key not in wanted]
    shapes = [
        f"{key} is {_shape(tensors[key])} in the file and {_shape(tensor)} in the model"
        for key, tensor in wanted.items()
        if key in tensors and tensors[key].shape != tensor.shape
    ]
    kinds = [
        f"{key} is {_kind(tensors[key])} in the file and {_kind(tensor)} in the model"
        for key, tensor in wanted.items()
        if key in tensors and _kind(tensors[key]) != _kind(tensor)
    ]
    if not (missing or unexpected or shapes or kinds):
        return
    problems = [
        f"{label}: {_listed(keys, '; ' if label.endswith('differ') else ', ')}"
        for label, keys in (
            ("missing in the file", missing),
            ("unknown to the model", unexpected),
            ("shapes differ", shapes),
            ("numbers differ", kinds),
        )
        if keys
    ]
    raise SpiritlevelError(
        f"The checkpoint {name!r} must fit the model, and does not: {'. '.join(problems)}. "
        "Build the model with the options it was trained with."
    )


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))


def _kind(tensor: Tensor) -> str:
    """Copying from one of these to another loses something, or fails."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        return "sparse or quantized"
    if tensor.is_complex():
        return "complex"
    return "floating point" if tensor.is_floating_point() else "whole numbers"


def _listed(names: Iterable[str], separator: str) -> str:
    names = list(names)
    more = len(names) - MAX_LISTED
    return separator.join(names[:MAX_LISTED]) + (f" and {more} more" if more > 0 else "")


WHOLE = ("model.safetensors", "pytorch_model.bin", "adapter_model.safetensors")
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


def files_in(name: str) -> list[str]:
    """The files with the weights in a folder, one or several; the name itself if it is no folder.

    Raises SpiritlevelError where the folder has none, or names files outside of it.
    """
    folder = pathlib.Path(name)
    if not folder.is_dir():
        return [name]
    for file in WHOLE:
        if (folder / file).is_file():
            return [os.fspath(folder / file)]
    for index in INDEXES:
        if (folder / index).is_file():
            return [os.fspath(folder / part) for part in _parts(folder / index)]
    some = sorted(path.name for path in folder.iterdir())[:5]
    raise SpiritlevelError(
        f"The checkpoint {name!r} is a folder without weights: it must have one of "
        f"{', '.join((*WHOLE, *INDEXES))}, as save_pretrained writes them. It has: "
        f"{', '.join(some) or 'nothing'}. Give the path of the file with the weights."
    )


def renamed_by_transformers(
    model: nn.Module, name: str, found: Mapping[str, Tensor]
) -> dict[str, Tensor] | None:
    """A folder as transformers itself reads it, under the model's own names; None if it cannot.

    From version 5 on, `save_pretrained` writes some networks under the names, and in the parts, of
    former versions: the experts of a mixture one by one, where the model holds them as one tensor.
    What transformers could not place is on the device "meta", in the shape it has in the file.
    """
    library = sys.modules.get("transformers")
    if library is None or int(library.__version__.split(".")[0]) < 5 or not os.path.isdir(name):
        return None
    if not isinstance(model, library.PreTrainedModel):
        return None
    floats = [tensor.dtype for tensor in found.values() if tensor.is_floating_point()]
    dtype = torch.float32
    for each in floats:  # no number of the file is rounded
        dtype = torch.promote_types(dtype, each)
    with _quietly(library):
        read, told = type(model).from_pretrained(
            name,
            config=model.config,
            dtype=dtype,
            local_files_only=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    state = read.state_dict()
    placed = {key: value for key, value in state.items() if key not in told["missing_keys"]}
    shapes = {key: tuple(shape) for key, shape, _ in told["mismatched_keys"]}
    shapes |= {key: found[key].shape for key in told["unexpected_keys"] if key in found}
    return placed | {key: torch.empty(shape, device="meta") for key, shape in shapes.items()}


@contextlib.contextmanager
def _quietly(library: Any) -> Iterator[None]:
    """Without bars and tables: what does not fit becomes one error of ours."""
    logging = library.utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _parts(index: pathlib.Path) -> list[str]:
    """The files that an index names; each lies beside it."""
    try:
        content = parse_json(index.read_text("utf-8"))
        parts = sorted(set(content["weight_map"].values()))
    except (Misread, KeyError, AttributeError, TypeError, UnicodeDecodeError) as error:
        raise SpiritlevelError(
            f"The index {os.fspath(index)!r} of a checkpoint cannot be read: {error}. Save the "
            "model again with save_pretrained."
        ) from error
    if outside := [part for part in parts if part != pathlib.PurePath(part).name]:
        raise SpiritlevelError(
            f"The index {os.fspath(index)!r} of a checkpoint names the file {outside[0]!r}, which "
            "does not lie beside it. Copy the whole folder, and leave its files where they are."
        )
    return parts
