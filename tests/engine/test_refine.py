"""The one loop that spends draws: it goes on while passes are left, and its advice is enough."""

import math
import re

import pytest
import torch
from torch import nn

import spiritlevel as sl
from spiritlevel.engine.estimate import Estimate
from spiritlevel.engine.precision import Precision
from spiritlevel.engine.refine import (
    AbstractDraws,
    MeanOfDraws,
    advice,
    missed,
    next_count,
    passes_that_suffice,
    refine,
)
from zoo.plain import classes, network, random

SPREAD = 0.3  # of a draw around 1


class Known(AbstractDraws):
    """Draws whose error is that of their number: 1 ± SPREAD / √count."""

    def __init__(self, *, pilot=2, least=1, passes_a_draw=1, spent=0):
        self.pilot, self.least, self.passes_a_draw, self.spent = pilot, least, passes_a_draw, spent
        self.stages = []

    @property
    def count(self):
        return sum(self.stages)

    @property
    def passes(self):
        return self.spent + super().passes

    def draw(self, count):
        self.stages.append(count)

    def estimate(self):
        return Estimate(1.0, SPREAD**2 / self.count, drawn=True)


def needed(rtol):
    return math.ceil((1.959964 * SPREAD / rtol) ** 2)


@pytest.mark.parametrize("least", [1, 2, 4])
@pytest.mark.parametrize("rtol", [0.4, 0.41, 0.3, 0.1, 0.03])
def test_it_goes_on_while_passes_are_left(least, rtol):
    draws = Known(least=least)
    found = refine(draws, Precision(rtol=rtol, max_passes=2000))
    assert found.within(rtol, 0.95)
    assert needed(rtol) <= draws.count <= 1.05 * max(needed(rtol), 2) + 1 + least
    assert all(stage >= least for stage in draws.stages[1:])


@pytest.mark.parametrize("passes_a_draw", [1, 2, 3])
@pytest.mark.parametrize("max_passes", [1, 5, 30, 31, 32])
@pytest.mark.parametrize("least", [1, 2, 4])
def test_where_it_stops_short_the_passes_are_used_up(passes_a_draw, max_passes, least):
    asked = Precision(rtol=0.02, max_passes=max_passes)
    draws = Known(least=least, passes_a_draw=passes_a_draw)
    found = refine(draws, asked)
    assert draws.passes <= max(max_passes, 2 * passes_a_draw)  # an error bar needs two
    assert max_passes - draws.passes < least * passes_a_draw
    enough = passes_that_suffice(draws, asked)
    assert enough > max_passes
    assert f"max_passes={enough:.0f} would have sufficed." in missed(draws, asked, found)
    again = Known(least=least, passes_a_draw=passes_a_draw)
    more = Precision(rtol=0.02, max_passes=int(enough))
    assert refine(again, more).within(0.02, 0.95)


def test_what_was_spent_before_counts():
    asked = Precision(rtol=0.02, max_passes=40)
    draws = Known(spent=30)
    refine(draws, asked)
    assert draws.count == 10
    alone = Known()
    refine(alone, asked)
    assert passes_that_suffice(draws, asked) == passes_that_suffice(alone, asked) + 30


def test_a_value_of_zero_has_no_relative_precision():
    draws = MeanOfDraws(lambda numbers: [(-1.0) ** n for n in numbers], pilot=2)
    asked = Precision(max_passes=10)
    found = refine(draws, asked)
    assert draws.count == 10
    assert found.value == 0.0
    assert "contains 0, so a relative precision has no meaning yet" in missed(draws, asked, found)
    assert math.isinf(next_count(found, found, 10, asked))
    assert advice(draws, asked, Estimate(0.0, 1.0)) == "Try max_passes=40."


def test_more_passes_are_not_asked_for_where_some_are_left():
    """A part that is not judged may have no interval when the whole is precise enough."""
    unknown = Estimate(1.0, math.inf, drawn=True)
    draws = Known()
    refine(draws, Precision(rtol=0.3, max_passes=40))
    few = "So few probes give no interval."
    assert advice(draws, Precision(rtol=0.3, max_passes=40), unknown) == f"{few} Lower rtol."
    spent = Precision(rtol=0.3, max_passes=draws.count)
    assert advice(draws, spent, unknown) == f"{few} Raise max_passes."


@pytest.mark.parametrize("measure", ["curvature.ggn_trace", "curvature.trace", "relative.kappa"])
@pytest.mark.parametrize("method", ["auto", "output_probes"])
def test_probes_that_nearly_suffice_are_not_the_last(measure, method):
    """One more would do, but the error of a single probe is unknown: so it takes two."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = network(nn.ReLU, (4, 12, 60))
    data = (random(400, 4), classes(400, 60))

    def measured(rtol):
        options = {"rtol": rtol, "max_passes": 2000, "method": method}
        return sl.measure(net, data, measures=measure, **options)[measure]

    def probes(found):
        return int(re.search(r"(\d+) output probes", found.text).group(1))

    rough = measured(0.9)
    low, high = rough.interval
    reached = (high - low) / 2 / abs(rough.value)
    assert probes(rough) == 2
    fine = measured(0.97 * reached)
    assert fine.status is sl.results.Status.OK
    assert probes(fine) == 4
