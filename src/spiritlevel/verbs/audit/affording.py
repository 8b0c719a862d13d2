"""What an audit can afford: on how many samples, and which measures.

A symmetry of the network does the same to a measure whatever the number of samples. So where a
budget is set, measures are taken on as many of them as it allows, spread over the data; that the
outputs stay what they were is verified on all. A measure that is too dear even on a few samples is
left out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from ...engine.prices import LOOKS, Price, Prices
from ...engine.purse import FORWARD_BACKWARDS
from ...measures.asked import Asked
from ...measures.options import Options, as_options
from ...measures.setup import Setup
from ...model import batches as _batches
from ...model.surface import Surface
from ...records.content import ERROR, number

LEAST_SAMPLES = 8  # that measures are taken on
FEW_STEPS = {"ascent_steps": 5, "restarts": 0}  # of the search for the worst case
ROUGH = 0.25  # precision of output probes, which are the same for all copies
FORWARD = 1 / 3  # what verifying the outputs of a copy takes
FIRST_LOOKS = 60  # of a sample, at the network itself: copies recall what they found
SETTLED = 1 / 3  # share of the later draws in which a dear measure is still open


@dataclasses.dataclass(frozen=True)
class Affordable:
    """What is measured of every copy, and what that takes."""

    setup: Setup
    data: Iterable[Any]
    left_out: Mapping[str, float]  # measures that are too dear, with what each would take
    note: str  # on how many samples, where these are not all
    plan: str  # in one line


def on_all(setup: Setup, data: Iterable[Any], copies: int) -> Affordable:
    """Everything, on all data."""
    text = f"{copies + 1} measurements, of the network and {copies} copies of it"
    return Affordable(setup, data, {}, "", text)


def cheaper(setup: Setup) -> Setup:
    """With searches of a few steps and rough output probes, unless others were asked for."""
    usual, given = Options(), as_options(setup.options)
    changed = vars(given) | {
        name: steps
        for name, steps in FEW_STEPS.items()
        if getattr(given, name) == vars(usual)[name]
    }
    rtol = ROUGH if setup.rtol == Setup().rtol else setup.rtol
    return dataclasses.replace(setup, options=changed, rtol=rtol)


def within(
    budget: float,
    setup: Setup,
    model: nn.Module,
    data: Iterable[Any],
    *,
    asked: Asked,
    draws: Mapping[str, int],
    spent: float,
) -> Affordable:
    """What the budget allows for so many `draws` of each move, after what was `spent` on them."""
    setup = cheaper(setup)
    copies, moves = sum(draws.values()), len(draws)
    workspace = setup.workspace(model, data)
    with workspace.surface.preserved():
        total = workspace.num_samples
        few = setup.workspace(model, _spread(workspace.surface, LEAST_SAMPLES))
        with few.surface.preserved():
            prices: Prices | None = asked.of(few).priced().prices
    assert prices is not None
    count = min(LEAST_SAMPLES, total)
    spent += (1 + copies) * FORWARD
    spent += (copies + FIRST_LOOKS) / total  # a copy runs three samples
    left, per_sample, left_out = budget - spent, 0.0, dict[str, float]()
    shared = (1 + copies) * max(prices.shared - LOOKS / count, 1.0)
    chosen: list[Price] = []
    for part in sorted(prices.parts, key=lambda each: each.likely):
        is_dear = part.rows is None
        times = 1 + (moves + SETTLED * (copies - moves) if is_dear else copies)
        if (shared + per_sample + times * part.likely) * count / total <= left:
            per_sample += times * part.likely
            chosen.append(part)
        else:
            price = times * part.likely * count / total
            left_out |= dict.fromkeys(part.measures, price)
    samples = min(total, max(count, int(left * total / (shared + per_sample))))
    likely = spent + (shared + per_sample) * samples / total
    note = f"{samples} of the {total} samples" if samples < total else ""
    dear = "".join(
        f"; left out: {name} (about {number(price, ERROR)})" for name, price in left_out.items()
    )
    plan = (
        f"about {number(likely, ERROR)} {FORWARD_BACKWARDS} in all: {copies + 1} measurements, of "
        f"the network and {copies} copies of it, on {note or 'all samples'}, and "
        f"{number(spent, ERROR)} to verify the copies on all; the budget is {budget:g}{dear}"
    )
    with workspace.surface.preserved():
        part_of_data = _spread(workspace.surface, samples) if note else data
    return Affordable(setup, part_of_data, left_out, note, plan)


def _spread(surface: Surface, count: int) -> list[Any]:
    """So many samples, spread evenly over the data of all processes."""
    total, seen, parts = sum(surface.processes.gather(surface.count_samples())), 0, list[Any]()
    step = max(total / max(count, 1), 1.0)
    for _, batch in surface.batches():
        length = _batches.num_samples(batch)
        first = math.ceil(seen / step)
        places = [int(k * step) - seen for k in range(first, math.ceil((seen + length) / step))]
        chosen = torch.tensor([i for i in places if 0 <= i < length], device=surface.device)
        if len(chosen):
            part = _batches.take(batch, chosen)
            joined = _batches.join(parts[-1], part) if parts else None
            parts = [*parts, part] if joined is None else [*parts[:-1], joined]
        seen += length
    return parts
