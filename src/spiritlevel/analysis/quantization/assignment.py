"""One option for every weight within a budget: a small integer program."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ...errors import SpiritlevelError, brief, require
from ...need import number

SLACK = 1 + 1e-12  # sums of sizes are rounded


@dataclasses.dataclass(frozen=True)
class SizeBudget:
    """What all weights may take, of bits per weight or of bytes with the scales."""

    name: str
    limit: float

    def refuse_if_below(self, mean_bits: float, num_bytes: float) -> None:
        """Refuse it if the smallest plan takes more."""
        least = num_bytes if self.name == "bytes" else mean_bits
        if self.limit < least:
            raise SpiritlevelError(
                f"The budget {self.name!r} must be at least {least:g}, which is what the smallest "
                f"widths take. Got {brief(self.limit)}. Raise it, or offer smaller 'bits'."
            )


def size_budget(mean_bits: float | None, num_bytes: float | None) -> SizeBudget:
    """The one of the two that is given."""
    given = {"mean_bits": mean_bits, "bytes": num_bytes}
    known = [SizeBudget(name, limit) for name, limit in given.items() if limit is not None]
    if len(known) != 1:
        raise SpiritlevelError(
            f"A plan needs one budget: 'mean_bits' or 'bytes'. Got {'both' if known else 'neither'}"
            ". For example mean_bits=4.0."
        )
    if not number(above=0)(known[0].limit):
        raise SpiritlevelError(
            f"The budget {known[0].name!r} must be a positive number. Got {brief(known[0].limit)}. "
            "For example mean_bits=4.0."
        )
    return known[0]


@dataclasses.dataclass(frozen=True)
class Assignment:
    """Options of several weights, of which each gets one; the sum of sizes is ≤ the limit."""

    weights: Sequence[str]  # of each option
    values: Sequence[float]
    sizes: Sequence[float]
    limit: float

    def solve(self) -> list[int]:
        """The options with the smallest sum of values."""
        optimize = require("scipy.optimize", what="A plan of bit widths", extra="study")
        one_each = [
            [float(w == name) for w in self.weights] for name in dict.fromkeys(self.weights)
        ]
        # values may be 1e-12: the solver's tolerances are absolute
        largest = max(map(abs, self.values), default=0.0) or 1.0
        found = optimize.milp(
            [value / largest for value in self.values],
            integrality=[1] * len(self.values),
            bounds=optimize.Bounds(0, 1),
            constraints=[
                optimize.LinearConstraint(one_each, 1, 1),
                optimize.LinearConstraint([list(self.sizes)], -math.inf, self.limit * SLACK),
            ],
            options={"mip_rel_gap": 0.0},
        )
        if found.x is None:
            raise SpiritlevelError(
                f"No plan of bit widths was found: {found.message}. Try another budget or fewer "
                "'bits'."
            )
        return [i for i, taken in enumerate(found.x) if taken > 0.5]

    def improve(self, start: Sequence[int], pairs: Tensor) -> list[int]:
        """Exchange the options of one or two weights as long as that lowers the value of all.

        That value is the sum of the values of the options plus half the sum of `pairs` over every
        two of them. What is found is at least as good as `start`; better options that differ in
        three weights or more may exist.
        """
        number_of = {name: i for i, name in enumerate(dict.fromkeys(self.weights))}
        of = torch.tensor([number_of[name] for name in self.weights])
        value, size = torch.tensor(self.values).double(), torch.tensor(self.sizes).double()
        same = of[:, None] == of
        between = pairs.double() * ~same
        now = torch.zeros(len(number_of), dtype=torch.long)
        now[of[start]] = torch.tensor(start)
        while True:
            old = now[of]  # what each option would replace
            field = between[:, now].sum(dim=1)  # with all other weights as they are
            alone = value - value[old] + field - field[old]
            grown = size - size[old]
            # moving two: what they share changes too
            shared = between - between[old] - between[:, old] + between[old][:, old]
            both = torch.where(same, alone[:, None], alone[:, None] + alone + shared)
            growth = torch.where(same, grown[:, None], grown[:, None] + grown)
            room = self.limit * SLACK - float(size[now].sum())
            both = both.masked_fill(growth > room, torch.inf)
            best = int(both.argmin())
            first, second = divmod(best, len(of))
            if float(both.flatten()[best]) >= -1e-12 * float(value.abs().max()):
                return now.tolist()
            now[of[first]] = first
            if of[first] != of[second]:
                now[of[second]] = second
