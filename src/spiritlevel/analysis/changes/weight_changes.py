"""`WeightChanges`: a network whose weights are changed, whatever the changes are.

For rounding, deleting and all others that is the same: which weights can be changed where they act,
one pass over the data for slope and curvature along each change, the best choices by that, and the
loss after them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from typing import Any

from torch import Tensor

from ...engine.data_pass import Needs
from ...engine.recorded_runs import reasons_against
from ...engine.workspace import Workspace
from ...errors import SpiritlevelError
from ...model.losses import CrossEntropy
from ...model.weight_matrices import WeightMatrix
from .record import Record


class WeightChanges:
    """The weights of a network that can be changed, and the loss after their changes."""

    def __init__(
        self,
        workspace: Workspace,
        wanted: str,
        reason_against: Callable[[WeightMatrix], str | None] = lambda matrix: None,
    ) -> None:
        """`wanted` completes "weight matrices whose"; `reason_against` leaves further ones out."""
        self.workspace = workspace
        workspace.want(Needs(sweep=True))
        matrices = {matrix.name: matrix for matrix in workspace.surface.matrices.values()}
        self.left_out = reasons_against(workspace, matrices)
        for name, matrix in matrices.items():
            if (reason := reason_against(matrix)) is not None:
                self.left_out.setdefault(name, reason)
        self.matrices = {n: m for n, m in matrices.items() if n not in self.left_out}
        if not self.matrices:
            first = next(iter(self.left_out.items()), ("", "it has no weight matrix"))
            raise SpiritlevelError(
                f"The model must have weight matrices whose {wanted}. Got none: {first[0]!r}: "
                f"{first[1]}."
            )
        self.weights = {name: m.parameter.detach() for name, m in self.matrices.items()}

    def facts(self, **settings: Any) -> dict[str, Any]:
        """What every record of changes has, by its fields."""
        loss, error = self._losses({})
        return {
            "left_out": self.left_out,
            "loss": loss,
            "error": error,
            "cost": self.workspace.cost,
            "settings": self.workspace.settings() | settings,
        }

    def finished(
        self, found: Record, *, check: bool, same: Callable[[Any], Hashable] = id
    ) -> Record:
        """The record with all costs; with `check` also with the loss after every choice in it.

        Choices for which `same` is equal are tried once.
        """
        losses: dict[Hashable, tuple[float, float | None]] = {}

        def tried(choice: Any) -> Any:
            if same(choice) not in losses:  # one at a time: each is a copy of all weights
                weights = self.weights.items()
                losses[same(choice)] = self._losses(
                    {name: found.changed(name, weight, choice) for name, weight in weights}
                )
            loss, error = losses[same(choice)]
            rise = loss - found.loss
            return dataclasses.replace(choice, measured_rise=rise, measured_error=error)

        found = found.with_each(tried) if check else found
        return dataclasses.replace(found, cost=self.workspace.cost)  # type: ignore[type-var]

    def _losses(self, point: dict[str, Tensor]) -> tuple[float, float | None]:
        """Loss and share of wrong predictions with these weights; the latter of classes only."""
        perturbed = self.workspace.perturbed
        (loss,) = perturbed.losses([point])
        if not isinstance(self.workspace.surface.loss, CrossEntropy):
            return loss, None
        return loss, perturbed.errors([point])[0]
