"""Arguments of the verbs: refused at the door if they are of a type that cannot work.

Here are the checks of what the model room knows; those of a verb's own arguments stand beside it.

What a value may be beyond its type (a range, a name that exists) is checked where it is used.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import nn

from ..need import Test, is_number, need, or_none


class ArgumentCheck(NamedTuple):
    """What an argument must be, at the door of a verb."""

    fits: Test
    wanted: str  # to complete "must be ..."
    alike: bool = True  # whether it must be the same in all processes


def check_network(verb: str, model: Any) -> None:
    """Refuse what is no network with weights in memory."""
    check_arguments(verb, {"model": model}, CHECKS)


def check_arguments(
    verb: str, arguments: Mapping[str, Any], checks: Mapping[str, ArgumentCheck]
) -> None:
    """Refuse the first argument that its check does not let pass."""
    for name, value in arguments.items():
        need(name, value, checks[name].fits, checks[name].wanted, of=verb, typed=True)


def _is_network(value: Any) -> bool:
    return isinstance(value, nn.Module) and not any(
        each.is_meta for each in (*value.parameters(), *value.buffers())
    )


def _are_bytes(value: Any) -> bool:
    """A float such as 2e9 is one too."""
    return is_number(value) and abs(value) < 2**63 and value == int(value)


def is_text(value: Any) -> bool:
    """Whether it is one."""
    return isinstance(value, str)


def are_texts(value: Any) -> bool:
    """One text or a list of them; a set has no order, and a generator can be read only once."""
    if isinstance(value, bytes | bytearray) or not isinstance(value, Sequence):
        return False
    return isinstance(value, str) or all(isinstance(each, str) for each in value)


def _is_seed(value: Any) -> bool:
    # Not a number of numpy, which torch's generators refuse.
    return type(value) is int and -(2**63) <= value < 2**64


def _may_be_data(value: Any) -> bool:
    if getattr(value, "ndim", 1) == 0:  # an array or a tensor that is one number
        return False
    return not isinstance(value, str | bytes | bytearray | set | frozenset | type)


def _is_loss(value: Any) -> bool:
    """A name, or a function of outputs and targets; a class is no loss, its objects are."""
    if isinstance(value, str) or (hasattr(value, "values") and hasattr(value, "curvature")):
        return True
    if isinstance(value, type) or not callable(value):
        return False
    try:
        inspect.signature(value.forward if isinstance(value, nn.Module) else value).bind(0, 0)
    except TypeError:
        return False
    except ValueError:  # written in C
        return True
    return True


def _are_networks(value: Any) -> bool:
    return not isinstance(value, Mapping) or all(
        isinstance(name, str) and _is_network(model) for name, model in value.items()
    )


def is_flag(value: Any) -> bool:
    """True or False, and not what counts as one of them."""
    return isinstance(value, bool)


_FUNCTION = or_none(callable)
CHECKED_LATER = ArgumentCheck(lambda value: True, "")  # where it is used, which has its own words
CHECKS = {
    "model": ArgumentCheck(
        _is_network, "a torch.nn.Module whose weights are in memory, not on 'meta'", alike=False
    ),
    "models": ArgumentCheck(
        _are_networks, "a dict of names and torch.nn.Modules, as in {'sgd': net, ...}", alike=False
    ),
    "data": ArgumentCheck(
        _may_be_data, "a loader, a list of batches, or a pair of tensors (x, y)", alike=False
    ),
    "loss": ArgumentCheck(
        _is_loss, "'cross_entropy', 'mse', 'bce', or a function of outputs and targets"
    ),
    "layers": ArgumentCheck(
        or_none(lambda value: are_texts(value) and len(value) > 0),
        "the path or pattern of a layer, a list of at least one of them, or None",
    ),
    "forward": ArgumentCheck(_FUNCTION, "a function, or None"),
    "progress": ArgumentCheck(_FUNCTION, "a function, or None", alike=False),
    "memory": ArgumentCheck(
        or_none(_are_bytes), "a whole number of bytes below 2**63, or None", alike=False
    ),
    "arithmetic": ArgumentCheck(is_text, "'full', 'tf32' or 'bf16'"),
    "seed": ArgumentCheck(_is_seed, "a whole number of Python that fits into 64 bits"),
    "distributed": ArgumentCheck(is_flag, "True or False"),
}
