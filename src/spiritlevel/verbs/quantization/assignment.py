"""The best width for every weight within a budget: a small integer program."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from ...ground.errors import (
    SpiritlevelError,
    brief,
    require,
    suggestion,
)

if TYPE_CHECKING:
    from .records import Width

Rule = Literal["joint", "curvature", "rise", "trace", "error"]
MEAN_BITS = "mean_bits"


def check_rule(by: str, *, has_traces: bool, has_pairs: bool) -> None:
    """Refuse a rule that is not known or has no numbers."""
    if by not in get_args(Rule):
        raise SpiritlevelError(
            f"The 'by' argument of plan must be one of {', '.join(get_args(Rule))}. Got "
            f"{brief(by)}.{suggestion(by, get_args(Rule))}"
        )
    if by == "joint" and not has_pairs:
        raise SpiritlevelError(
            "The 'by' argument of plan can be 'joint' only where the terms between weights are "
            "known: not in a file, and not for networks with many outputs. Use by='curvature'."
        )
    if by == "trace" and not has_traces:
        raise SpiritlevelError(
            "The 'by' argument of plan can be 'trace' only if the traces are known. Call "
            "quantization with traces=True."
        )


def check_limits(mean_bits: Any, num_bytes: Any) -> None:
    """Exactly one limit, and a positive number."""
    if (mean_bits is None) == (num_bytes is None):
        came = "neither" if mean_bits is None else "both"
        raise SpiritlevelError(
            f"A plan needs one budget: 'mean_bits' or 'bytes'. Got {came}. "
            "For example mean_bits=4.0."
        )
    value = mean_bits if num_bytes is None else num_bytes
    name = MEAN_BITS if num_bytes is None else "bytes"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:
        raise SpiritlevelError(
            f"The budget {name!r} must be a positive number. Got {brief(value)}. "
            "For example mean_bits=4.0."
        )


def check_budget(
    smallest: Sequence[Width], sizes: Mapping[str, int], mean_bits: Any, num_bytes: Any
) -> float:
    """The limit, if the smallest plan fits into it."""
    check_limits(mean_bits, num_bytes)
    if num_bytes is not None:
        refuse_below(sum(width.bytes for width in smallest), num_bytes, "bytes")
        return float(num_bytes)
    total = sum(sizes.values())
    refuse_below(sum(sizes[w.weight] * w.bits for w in smallest) / total, mean_bits, MEAN_BITS)
    return float(mean_bits)


def refuse_below(least: float, given: float, what: str) -> None:
    """Refuse a budget below the smallest plan."""
    if given < least:
        raise SpiritlevelError(
            f"The budget {what!r} must be at least {least:g}, which is what the smallest widths "
            f"take. Got {brief(given)}. Raise it, or offer smaller 'bits'."
        )


def solve(
    widths: Sequence[Width], values: Sequence[float], sizes: Sequence[float], limit: float
) -> list[Width]:
    """One width for every weight, with the smallest sum of values at a sum of sizes ≤ limit."""
    optimize = require("scipy.optimize", what="A plan of bit widths", extra="scipy")
    names = list(dict.fromkeys(width.weight for width in widths))
    one_each = [[float(width.weight == name) for width in widths] for name in names]
    # values may be 1e-12: the solver's tolerances are absolute
    largest = max((abs(value) for value in values), default=0.0) or 1.0
    objective = [value / largest for value in values]
    found = optimize.milp(
        objective,
        integrality=[1] * len(widths),
        bounds=optimize.Bounds(0, 1),
        constraints=[
            optimize.LinearConstraint(one_each, 1, 1),
            optimize.LinearConstraint([list(sizes)], -math.inf, limit * (1 + 1e-12)),
        ],
        options={"mip_rel_gap": 0.0},
    )
    if found.x is None:
        raise SpiritlevelError(
            f"No plan of bit widths was found: {found.message}. Try another budget or fewer 'bits'."
        )
    return [width for width, taken in zip(widths, found.x, strict=True) if taken > 0.5]


def improve(
    widths: Sequence[Width],
    start: Sequence[Width],
    values: Sequence[float],
    pairs: Tensor,
    sizes: Sequence[float],
    limit: float,
) -> list[Width]:
    """Exchange the widths of one or two weights as long as that lowers the value of all together.

    The value of a plan is the sum of `values` of its widths plus half the sum of `pairs` over every
    two of them. What is found is at least as good as `start`; a better plan that differs in
    three weights or more may exist.
    """
    index = {(width.weight, width.bits): i for i, width in enumerate(widths)}
    owner = {name: i for i, name in enumerate(dict.fromkeys(w.weight for w in widths))}
    of = torch.tensor([owner[width.weight] for width in widths])
    value, size = torch.tensor(values).double(), torch.tensor(sizes).double()
    between = pairs.double() * (of[:, None] != of)
    chosen = torch.tensor([index[width.weight, width.bits] for width in start])
    now = torch.zeros(len(owner), dtype=torch.long)
    now[of[chosen]] = chosen
    while True:
        old = now[of]  # what each width would replace
        field = between[:, now].sum(dim=1)  # with all other weights as they are
        alone = value - value[old] + field - field[old]
        grown = size - size[old]
        # moving two: what they share changes too
        shared = between - between[old] - between[:, old] + between[old][:, old]
        both = alone[:, None] + alone + shared
        growth = grown[:, None] + grown
        both = torch.where(of[:, None] == of, alone[:, None].expand_as(both), both)
        growth = torch.where(of[:, None] == of, grown[:, None].expand_as(growth), growth)
        room = limit * (1 + 1e-12) - float(size[now].sum())
        both = both.masked_fill(growth > room, torch.inf)
        best = int(both.argmin())
        first, second = divmod(best, len(widths))
        if float(both.flatten()[best]) >= -1e-12 * float(value.abs().max()):
            return [widths[int(i)] for i in now]
        now[of[first]] = first
        if of[first] != of[second]:
            now[of[second]] = second
