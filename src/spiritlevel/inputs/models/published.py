"""Networks with published weights: `hf:` and a name of the Hugging Face hub, or a folder.

Only code of transformers runs. What a model brings itself is for its user to read, and to load.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ...ground.errors import SpiritlevelError, brief, require

PREFIX = "hf:"


def is_published(spec: str) -> bool:
    """Whether it names a model with published weights.

    >>> is_published("hf:gpt2"), is_published("my_nets:make")
    (True, False)
    """
    return spec.startswith(PREFIX)


def published(spec: str) -> Callable[..., nn.Module]:
    """The function that loads it; it takes what `from_pretrained` takes."""
    name = os.path.expanduser(spec.removeprefix(PREFIX))
    if not name:
        raise SpiritlevelError(
            "The model 'hf:' must name a folder that save_pretrained wrote, or a model of the "
            "Hugging Face hub. Got nothing behind the colon. For example hf:./my-model or hf:gpt2."
        )
    return functools.partial(_load, name)


def tokenizer_of(model: nn.Module) -> Any:
    """The tokenizer that lies beside the weights of a network of transformers."""
    name = getattr(model, "name_or_path", "")
    if not name:
        raise SpiritlevelError(
            "Text needs the tokenizer of a model that was loaded from a folder or from the Hugging "
            f"Face hub. Got {type(model).__name__}, which was not. Give --model hf:FOLDER, or "
            "save the token ids as an .npz file."
        )
    library = _transformers()
    try:
        return library.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # readers of damaged files raise nearly anything
        raise SpiritlevelError(
            f"There is no tokenizer beside the model {name!r}: {_first_line(error)}. Put the files "
            "of its tokenizer into that folder (tokenizer.save_pretrained), or save the token ids "
            "as an .npz file."
        ) from error


def is_causal(model: nn.Module) -> bool:
    """Whether it is a language model of transformers that predicts the next token."""
    known = _transformers().models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return type(model).__name__ in set(known.values())


def _load(name: str, /, **options: Any) -> nn.Module:
    library = _transformers()
    config = _config(library, name)
    made = _class(library, name, config)
    try:
        # Full precision whatever the file has: --dtype and `memory` decide what is computed.
        with _bars_for_people(library):
            model, found = made.from_pretrained(
                name,
                **({"dtype": torch.float32} | options),
                trust_remote_code=False,
                output_loading_info=True,
            )
    except Exception as error:
        raise _unreadable(name, "weights", error) from error
    if missing := sorted({*found["missing_keys"], *map(str, found["mismatched_keys"])}):
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise SpiritlevelError(
            f"The weights of {name!r} must hold every parameter of {made.__name__}. Got none for "
            f"{', '.join(missing[:3])}{more}: these would be random. Fine-tune and save the model, "
            "or give a folder that holds all of it."
        )
    network: nn.Module = model
    return network


@contextlib.contextmanager
def _bars_for_people(library: Any) -> Iterator[None]:
    """Without progress bars where nobody watches: in a log they are noise."""
    log = library.utils.logging
    if sys.stderr.isatty() or not log.is_progress_bar_enabled():
        yield
        return
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.enable_progress_bar()


def _config(library: Any, name: str) -> Any:
    # A name of the hub has one slash at most, behind its owner.
    if os.path.isdir(name) or os.path.isabs(name) or name[0] == "." or name.count("/") > 1:
        _check_folder(name)
    try:
        return library.AutoConfig.from_pretrained(name, trust_remote_code=False)
    except Exception as error:
        if "trust_remote_code" in str(error):
            raise _own_code(name) from error
        raise _unreadable(name, "configuration", error) from error


def _check_folder(name: str) -> None:
    folder = pathlib.Path(name)
    if (folder / "config.json").is_file():
        return
    there = sorted(path.name for path in folder.iterdir())[:5] if folder.is_dir() else []
    came = f"a folder with {', '.join(there) or 'nothing'}" if folder.is_dir() else "no folder"
    raise SpiritlevelError(
        f"The model 'hf:{name}' must be a folder that save_pretrained wrote, with a config.json. "
        f"Got {came}. Check the path; for weights alone, give --model module:function and "
        "--checkpoint."
    )


def _class(library: Any, name: str, config: Any) -> Any:
    """The class that the configuration names, if it is one of transformers."""
    if getattr(config, "quantization_config", None) is not None:
        method = config.quantization_config.get("quant_method", "an unknown method")
        raise SpiritlevelError(
            f"The weights of {name!r} must be floating point numbers. Got weights quantized by "
            f"{brief(method)}, which have no derivatives. Give the model that they were made from."
        )
    architectures = config.architectures or []
    if len(architectures) != 1:
        raise SpiritlevelError(
            f"The configuration of {name!r} must name one architecture. Got {architectures!r}. "
            "Load the model in a function of your own: --model module:function."
        )
    made = getattr(library, architectures[0], None)
    if made is None:
        raise _own_code(name)
    return made


def _own_code(name: str) -> SpiritlevelError:
    return SpiritlevelError(
        f"The model {name!r} needs code that is not part of the installed transformers: newer, or "
        "its own, which is never run unasked. Update transformers, or read that code and load the "
        "model in a function of your own: --model module:function."
    )


def _unreadable(name: str, what: str, error: Exception) -> SpiritlevelError:
    is_folder = pathlib.Path(name).is_dir()
    advice = (
        "Save it again with save_pretrained, or get a new copy."
        if is_folder
        else "Check the name. Without access to the hub, download the model elsewhere and give its "
        "folder: --model hf:/path/to/folder."
    )
    where = "" if is_folder else ", which is no folder here and is not in the local cache,"
    return SpiritlevelError(
        f"The {what} of {name!r}{where} cannot be loaded: {_first_line(error)}. {advice}"
    )


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    line = text.splitlines()[0].rstrip(".") if text else ""
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def _transformers() -> Any:
    return require("transformers", what="A model of Hugging Face", extra="transformers")
