"""A measure put to the test: its values, and how far apart those of one quantity may lie."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import torch

from ..engine.precision import Precision
from ..engine.workspace import Workspace
from ..ground.errors import SpiritlevelError
from ..measures import Card, Measured, Measurement
from ..measures.options import Options
from ..model.surface import Surface
from ..records.measurements import Status
from ..verbs.reference_problems import Problem
from .moves import CHAINS, problem_named

MAXIMUM = r"\max"  # how the formula of a maximum over layers starts
ROUND_OFF = {torch.float64: 1e-8, torch.float32: 1e-4}  # 7 digits through a few layers of sums


def claim(holds: bool, otherwise: str) -> None:
    """Raise an AssertionError that says what is wrong, also where Python leaves out asserts."""
    if not holds:
        raise AssertionError(otherwise)


def close(one: float, other: float) -> bool:
    """Equal up to round-off."""
    return math.isclose(one, other, rel_tol=1e-12, abs_tol=1e-12 * abs(other))


def margin(*results: Measurement, rel: float, probes: bool = False) -> float:
    """How far values of one quantity may lie apart.

    Round-off, and the residuals: an eigenvalue lies within its residual. With other probes also 5
    standard errors of the difference, which chance exceeds once in a million.
    """
    spread = 5 * math.hypot(*(m.stderr or 0.0 for m in results)) if probes else 0.0
    largest = max(abs(m.value) for m in results)
    return rel * largest + sum(m.residual or 0.0 for m in results) + spread


def agree(
    one: Measurement,
    other: Measurement,
    when: str,
    *,
    rel: float = ROUND_OFF[torch.float64],
    probes: bool = False,
) -> None:
    """Claim that two values are the same; `when` completes "one is this, the other is that ..."."""
    apart = abs(one.value - other.value)
    near = apart <= margin(one, other, rel=rel, probes=probes)
    claim(near, f"it is {one.value!r}, and {other.value!r} {when}")


def error_bars(card: Card, found: Measurement) -> None:
    """A value is exact, or says how far it may be off."""
    if found.stderr is not None:
        _interval(card, found)
        return
    if card.found_by == "search" and found.status is Status.NOT_CONVERGED:
        claim(bool(found.residual and found.residual > 0), "it has not converged to nothing")
        claim(bool(found.text), "it has not converged, and does not say what to do")
        return
    claim(found.status is Status.OK, f"its status is {found.status.value!r}: {found.text}")
    claim(found.interval is None, "it has an interval and no stderr")
    if found.residual is None:
        claim(found.exact, "it is not exact, and has neither stderr nor residual")
    else:
        claim(found.residual >= 0, "its residual is negative")
        small = found.residual <= 1e-7 * abs(found.value)
        claim(small or not found.exact, f"it is exact with a residual of {found.residual:.2g}")


def _interval(card: Card, found: Measurement) -> None:
    assert found.stderr is not None
    claim(not found.exact, "it is exact, and has a stderr")
    claim(found.stderr > 0, "its stderr is not above 0")
    claim(found.interval is not None, "it has a stderr and no interval")
    assert found.interval is not None
    low, high = found.interval
    claim(close((low + high) / 2, found.value), "its interval is not around the value")
    half = (high - low) / 2  # at 95 % this is 1.96 standard errors, and more with few probes
    least = 1.95 * found.stderr - 1e-15 * abs(found.value)
    claim(half >= least, f"its interval is ±{half:.2g} with a stderr of {found.stderr:.2g}")
    precise = half <= found.settings["rtol"] * abs(found.value)
    # the precision is asked of the sum: layers and their maximum only show their error
    if not card.formula.startswith(MAXIMUM):
        wanted = Status.OK if precise else Status.NOT_CONVERGED
        claim(found.status is wanted, f"its status is {found.status.value!r} at ±{half:.2g}")
        claim(precise or "max_passes" in found.text, "it does not say what to do next")
    named = "probes" in found.text or "draws" in found.text
    claim(named, "it does not say how many probes or draws it took")


# Claims compare numbers at round-off: an iteration goes on until there is no more than that left.
CONVERGED = Precision(rtol=1e-7)


class UnderTest:
    """A card with the options that it is tested with."""

    def __init__(self, card: Card, options: Mapping[str, Any] | None = None) -> None:
        self.card, self.given = card, dict(options or {})
        self.is_estimate = card.found_by == "draws"  # by random numbers, whatever the network
        self._usual: dict[str, Measured] = {}
        self._applies: dict[str, bool] = {}

    def options(self, problem: Problem) -> Options:
        """So that every measure can be computed, and groups are smaller than the data."""
        draw = torch.Generator().manual_seed(9)
        values = {
            "m": 3,
            "initial": {
                name: torch.randn(p.shape, generator=draw, dtype=torch.float64).to(p)
                for name, p in problem.model.named_parameters()
            },
            "region": (1, 1, 2, 2) if problem.inputs().dim() == 4 else None,
            # under a narrow kernel the loss around a sample is its own, whatever moves
            "bandwidth": 1.0,
            "sigma": 0.1,  # and under little noise the rise of the loss drowns in its error bar
            "target": "loss",  # labels are random here: the error cannot rise
            "draws": 8,
            "ascent_steps": 12,  # the claims hold after any number of steps
            "restarts": 1,
            "weight_decay": 0.1,
        }
        return Options(**{**values, **self.given})

    def work_on(self, problem: Problem, **how: Any) -> Workspace:
        """A workspace that wants what the measure needs."""
        surface = Surface(problem.model, problem.data, loss=problem.loss)
        if self.card.found_by == "products":
            how = {"precision": CONVERGED} | how
        workspace = Workspace(surface, options=self.options(problem), **how)
        workspace.want(self.card.needs)
        return workspace

    def measured(self, problem: Problem, **how: Any) -> Measured:
        """The measure alone, as `measure` gets it."""
        workspace = self.work_on(problem, **how)
        with workspace.surface.preserved():
            workspace.run(workspace.wanted)
            return self.card.measured(workspace)

    def whole(self, problem: Problem, **how: Any) -> Measurement:
        """Of the whole network."""
        return self.measured(problem, **how).whole

    def usual(self, problem: Problem) -> Measured:
        """Of a problem just as it was made: the same in every check, so computed once."""
        if problem.name not in self._usual:
            self._usual[problem.name] = self.measured(problem)
        return self._usual[problem.name]

    def applies(self, problem: Problem) -> bool:
        """Whether a problem just as it was made has what the measure requires."""
        if problem.name not in self._applies:
            workspace = self.work_on(problem)
            try:
                with workspace.surface.preserved():
                    self.card.refuse(workspace)
                self._applies[problem.name] = True
            except SpiritlevelError:
                self._applies[problem.name] = False
        return self._applies[problem.name]

    def suitable(self, *networks: str) -> Problem | None:
        """The first of these problems that the measure applies to, without biases if need be."""
        for biases, network in itertools.product((True, False), networks):
            problem = problem_named(network, biases=biases)
            if self.applies(problem):
                return problem
        return None

    def chain(self) -> Problem:
        """A chain of layers that the measure applies to; that there is one is a claim as well."""
        problem = self.suitable(*CHAINS)
        claim(problem is not None, "it applies to no chain of layers, with biases or without")
        assert problem is not None
        return problem
