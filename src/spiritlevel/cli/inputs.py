"""Parsing the values of command-line options."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..ground.errors import SpiritlevelError, brief

if TYPE_CHECKING:
    import torch

UNITS = {"": 1, "B": 1}
for power, letter in enumerate("KMGT", start=1):
    UNITS |= {letter: 1024**power, f"{letter}IB": 1024**power, f"{letter}B": 1000**power}
WORDS = {"true": True, "false": False, "none": None}
LEAST_WITHOUT_UNIT = 1 << 20


def parse_pairs(texts: Sequence[str], flag: str) -> dict[str, object]:
    """`key=value` pairs; a value that is not a Python literal is a string. `flag` is an example.

    >>> parse_pairs(["hidden=128,64", "activation=gelu", "bias=true"], "--model-arg width=16")
    {'hidden': (128, 64), 'activation': 'gelu', 'bias': True}
    """
    values: dict[str, object] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not all(part.isidentifier() for part in key.split(".")):
            raise SpiritlevelError(
                f"Every {flag.split()[0]} must be key=value, as in {flag}. Got {brief(text)}."
            )
        try:
            values[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):  # the last two: too nested
            values[key] = WORDS.get(value.lower(), value)
    return values


def split_commas(values: list[str] | None) -> list[str] | None:
    """Names that are given with commas, one by one.

    >>> split_commas(["head.kappa,head.trace", "relative.*"])
    ['head.kappa', 'head.trace', 'relative.*']
    """
    if not values:
        return values
    return [part.strip() for value in values for part in value.split(",") if part.strip()]


def one_or_many(layers: list[str] | None) -> str | list[str] | None:
    """One layer as a string, so that "head" keeps its meaning."""
    if not layers:
        return None
    return layers[0] if len(layers) == 1 else layers


def refuse_unread(
    options: Mapping[str, object], measures: Sequence[str] | None, also: Iterable[str]
) -> None:
    """Raise if an option exists, but no measure of this call reads it."""
    from ..verbs import measuring as api

    if measures:
        cards = [card for pattern in measures for card in api.cards(pattern)]
    else:
        cards = [card for card in api.cards() if card.default]
    cards += [card for name in also for card in api.cards(name)]
    read = {option for card in cards for option in card.options}
    for name in options:
        readers = [card.name for card in api.cards() if name in card.options]
        if readers and name not in read:
            raise SpiritlevelError(
                f"The --option {name} has no effect here: no measure of this call reads it. Add "
                f"one that does with --measures: {', '.join(readers)}."
            )


def parse_size(text: str) -> int:
    """Bytes from a number with a unit; without one, they are bytes.

    >>> parse_size("512MiB"), parse_size("2 GB"), parse_size("1.5g")
    (536870912, 2000000000, 1610612736)
    """
    size = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    num_bytes = float(size[1]) * UNITS.get(size[2].upper(), 0) if size else 0.0
    if not 1 <= num_bytes < 2**63:
        raise SpiritlevelError(
            "A size must be positive, such as 512MiB, 2GiB or a number of bytes, in all less than "
            f"2**63 bytes. Got {brief(text)}."
        )
    return int(num_bytes)


def parse_memory(text: str) -> int:
    """The same for a limit; a bare number below 1 MiB was probably meant in another unit."""
    num_bytes = parse_size(text)
    if num_bytes < LEAST_WITHOUT_UNIT and text.strip()[-1].isdigit():
        raise SpiritlevelError(
            f"A limit this small needs a unit. Got {brief(text)}, which would be {num_bytes:,} "
            f"bytes. Write {text.strip()}MiB or {text.strip()}GiB, or {text.strip()}B if you mean "
            "that."
        )
    return num_bytes


def parse_device(text: str) -> torch.device:
    """A device that this machine has."""
    import torch

    try:
        device = torch.device(text)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        available = "cpu" + (
            f", cuda ({torch.cuda.device_count()} GPUs)" if torch.cuda.is_available() else ""
        )
        available += ", mps" if torch.backends.mps.is_available() else ""
        cause = str(error).splitlines()[0].rstrip(".")
        raise SpiritlevelError(
            f"The --device {text!r} cannot be used: {cause}. This machine has: {available}."
        ) from error
    return device
