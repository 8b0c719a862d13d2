"""From the words of a command line to networks, data and numbers."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import SpiritlevelError
from ..study import data

UNITS = {"": 1, "B": 1}
for power, letter in enumerate("KMGT", start=1):
    UNITS |= {letter: 1024**power, f"{letter}IB": 1024**power, f"{letter}B": 1000**power}
WORDS = {"true": True, "false": False, "none": None}
DTYPES = {"float32": torch.float32, "float64": torch.float64}


def parse_options(texts: Sequence[str], flag: str = "--option width=16") -> dict[str, object]:
    """`key=value` pairs; a value is a Python literal where it reads as one, else a string.

    >>> parse_options(["hidden=128,64", "activation=gelu", "bias=true"])
    {'hidden': (128, 64), 'activation': 'gelu', 'bias': True}
    """
    options: dict[str, object] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not all(part.isidentifier() for part in key.split(".")):
            raise SpiritlevelError(
                f"Every {flag.split()[0]} must be key=value, as in {flag}. Got {text!r}."
            )
        try:
            options[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[key] = WORDS.get(value.lower(), value)
    return options


def parse_memory(text: str) -> int:
    """Bytes from a number with a unit.

    >>> parse_memory("512MiB"), parse_memory("2 GB"), parse_memory("1.5g")
    (536870912, 2000000000, 1610612736)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if found is None or found[2].upper() not in UNITS or float(found[1]) == 0:
        raise SpiritlevelError(
            "The --memory must be a positive size such as 512MiB, 2GiB or a number of bytes. "
            f"Got {text!r}."
        )
    return int(float(found[1]) * UNITS[found[2].upper()])


def parse_dtype(text: str) -> torch.dtype:
    """One of the two dtypes that curvature can be measured in."""
    if text not in DTYPES:
        raise SpiritlevelError(
            f"The --dtype must be {' or '.join(DTYPES)}. Got {text!r}. "
            "Half precision has too few digits for curvature."
        )
    return DTYPES[text]


def parse_device(text: str) -> torch.device:
    """A device that is there."""
    try:
        device = torch.device(text)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        there = "cpu" + (
            f", cuda ({torch.cuda.device_count()} GPUs)" if torch.cuda.is_available() else ""
        )
        cause = str(error).splitlines()[0].rstrip(".")
        raise SpiritlevelError(
            f"The --device {text!r} cannot be used: {cause}. This machine has: {there}."
        ) from error
    return device


def load_data(
    name: str, *, split: str, samples: int | None, seed: int
) -> tuple[Tensor, Tensor, str]:
    """Inputs, targets and where they come from; of more than `samples` a random part."""
    x, y = data.load(name, split)
    whole = f"samples of {name} ({split})" if name == "digits" else f"samples of {name}"
    if samples is None or samples >= len(x):
        return x, y, f"{len(x)} {whole}"
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(x), generator=generator)[:samples].sort().values
    return x[chosen], y[chosen], f"{samples} of {len(x)} {whole}, drawn with seed {seed}"
