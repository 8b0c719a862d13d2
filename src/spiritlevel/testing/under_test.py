"""A measure that is put to the test: its card, and the values that several checks look at."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch

from ..engine.precision import Precision
from ..engine.workspace import Workspace
from ..ground.errors import SpiritlevelError
from ..measures import Card, Measured, Measurement
from ..measures.options import Options
from ..model.surface import Surface
from ..verbs.reference_problems import Problem
from .comparing import claim
from .moves import CHAINS, problem_named

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
