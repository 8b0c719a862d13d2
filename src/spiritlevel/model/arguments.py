"""Arguments of the verbs, by name: refused at the door if they are of a type that cannot work.

What a value may be beyond its type (a range, a name that exists) is checked where it is used.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from ..ground.errors import SpiritlevelError
from ..ground.files.names import as_path
from ..ground.need import (
    Test,
    is_number,
    is_whole,
    need,
    or_none,
)


def check_arguments(verb: str, arguments: Mapping[str, Any]) -> None:
    """Refuse the first argument of a wrong type; names without an entry are left alone."""
    for name, value in arguments.items():
        if name in CHECKS:
            fits, wanted = CHECKS[name]
            need(name, value, fits, wanted, of=verb, typed=True)


def _is_network(value: Any) -> bool:
    return isinstance(value, nn.Module) and not any(
        each.is_meta for each in (*value.parameters(), *value.buffers())
    )


def _are_bytes(value: Any) -> bool:
    """A float such as 2e9 is one too."""
    return is_number(value) and abs(value) < 2**63 and value == int(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_texts(value: Any) -> bool:
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


def _is_path(value: Any) -> bool:
    try:
        as_path(value, what="path")
    except SpiritlevelError:
        return False
    return True


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


_TEXTS = (or_none(_are_texts), "a text, a list of texts, or None")
_FUNCTION = (or_none(callable), "a function, or None")
CHECKS: dict[str, tuple[Test, str]] = {
    "model": (_is_network, "a torch.nn.Module whose weights are in memory, not on 'meta'"),
    "models": (_are_networks, "a dict of names and torch.nn.Modules, as in {'sgd': net, ...}"),
    "data": (_may_be_data, "a loader, a list of batches, or a pair of tensors (x, y)"),
    "loss": (_is_loss, "'cross_entropy', 'mse', 'bce', or a function of outputs and targets"),
    "measures": _TEXTS,
    "layers": (
        or_none(lambda value: _are_texts(value) and len(value) > 0),
        "the path or pattern of a layer, a list of at least one of them, or None",
    ),
    "head": (or_none(_is_text), "the path of a layer, or None"),
    "forward": _FUNCTION,
    "progress": _FUNCTION,
    "method": (or_none(_is_text), "the name of a method, such as 'auto'"),
    "memory": (or_none(_are_bytes), "a whole number of bytes below 2**63, or None"),
    "arithmetic": (_is_text, "'full', 'tf32' or 'bf16'"),
    "seed": (_is_seed, "a whole number of Python that fits into 64 bits"),
    "distributed": (_is_flag, "True or False"),
    "rtol": (is_number, "a number, such as 0.05"),
    "confidence": (is_number, "a number, such as 0.95"),
    "max_passes": (is_whole, "a whole number below 2**63, such as 100"),
    "max_overhead": (or_none(is_number), "a share of the time, such as 0.1, or None"),
    "draws": (is_whole, "a whole number, such as 3"),
    "match_confidence": (_is_flag, "True or False"),
    "biases": (_is_flag, "True or False"),
    "num": (is_whole, "a whole number below 2**63"),
    "num_vectors": (is_whole, "a whole number below 2**63"),
    "steps": (is_whole, "a whole number below 2**63"),
    "which": (_is_text, "'largest', 'smallest' or 'both'"),
    "matrix": (_is_text, "'hessian' or 'ggn'"),
    "kind": (_is_text, "'hessian', 'ggn' or 'fisher'"),
    "num_probes": (is_whole, "a whole number below 2**63, such as 32"),
    "scheme": (_is_text, "'per_tensor', 'per_channel' or 'per_group'"),
    "ranges": (_is_text, "'mse' or 'max'"),
    "mean_bits": (or_none(is_number), "a number of bits per weight, or None"),
    "bytes": (or_none(is_number), "a number of bytes, or None"),
    "traces": (_is_flag, "True or False"),
    "check": (_is_flag, "True or False"),
    "share": (or_none(is_number), "a number between 0 and 1, or None"),
    "by": (or_none(_is_text), "the name of a rule, or None"),
    "fisher": (_is_flag, "True or False"),
    "residual_rtol": (or_none(is_number), "a number, or None"),
    "directions": (or_none(_is_text), "'random', 'eigen' or None"),
    "dimensions": (or_none(is_whole), "1, 2 or None"),
    "points": (or_none(is_whole), "a whole number below 2**63, or None"),
    "reach": (or_none(is_number), "a number, or None"),
    "names": (or_none(_are_texts), "a list of texts, or None"),
    "cache": (or_none(_is_path), "a path, or None"),
}
