"""The diagonal of the Hessian, GGN or Fisher matrix: for EWC, OBD, merging and preconditioners."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from ...engine.diagonal import ggn_diagonal, residual_diagonal
from ...ground.need import is_whole, need, whole
from ...measures.setup import OfProducts, Setup
from ...measures.verb import verb
from ...model.arguments import ArgumentCheck
from ...records.content import VALUE, Cell, Column, Notes, Part, Table, Text
from ...records.measurements import Cost
from ...records.notebooks import Shown
from .curvature_operator import KIND, MATRICES, Kind, check_kind, matrix_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

LEAST_OUTPUT_PROBES = 8  # where they replace the columns: of fewer the error of an entry is a guess


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Diagonal(Shown):
    """The diagonal by parameter name, each part in the shape of its parameter, in float64."""

    HEADING: ClassVar = "Diagonal of the curvature"

    values: dict[str, Tensor]
    stderr: dict[str, Tensor]  # of the random probes, by entry; zeros where the values are exact
    exact: dict[str, bool]  # whether a part is the asked matrix's own, up to round-off
    text: dict[str, str]  # where it is not exact: how it was found
    kind: Kind
    cost: Cost
    settings: dict[str, Any]

    def describe(self) -> list[Part]:
        """The sum of the entries of each parameter, how it was found, and what was counted."""
        count, exact = int(self.settings["num_samples"]), sum(self.exact.values())
        found = f"Of the {MATRICES[self.kind]}'s diagonal, {exact} of {len(self.exact)} parts"
        columns = [
            Column("parameter", kind="name"),
            Column("entries"),
            Column("sum", digits=VALUE),
            Column("", kind="note"),
        ]
        rows: list[list[Cell]] = [
            [name, values.numel(), float(values.sum()), self.text[name] or "exact"]
            for name, values in self.values.items()
        ]
        answer = Text([f"{found} are exact."])
        return [answer, Table(columns, rows), Notes(self.cost.passes(count), count)]


@verb(kind=KIND, num_probes=ArgumentCheck(is_whole, "a whole number below 2**63, such as 32"))
def diagonal(
    setup: Setup,
    model: nn.Module,
    data: Iterable[Any],
    *,
    kind: Kind = "hessian",
    num_probes: int = 32,
    **shared: Unpack[OfProducts],
) -> Diagonal:
    """The diagonal of a curvature matrix. The model is left exactly as it was.

    The GGN's diagonal is exact, from one forward and C−1 backwards; with many outputs random
    probes of these replace the columns. The Hessian's is the same where the outputs are piecewise
    linear in a parameter, which is checked. Where they bend element by element only (tanh, SiLU),
    a column for each element completes it, if all are at most 100 passes. Elsewhere the diagonal
    of the rest, H − GGN, is estimated with random signs in weight space, and every entry has its
    error.

    Args:
        kind: "hessian", "ggn", or "fisher" (the GGN, for losses that are log-likelihoods).
        num_probes: random vectors for the rest, each one pass over the data.

    The other arguments are those of `measure`.

    >>> import torch, spiritlevel as sl
    >>> net = nn.Linear(3, 1, bias=False).double()
    >>> x, y = torch.eye(3).double(), torch.zeros(3, 1).double()
    >>> found = sl.diagonal(net, (x, y), loss="mse")        # 2·mean x_j²
    >>> [round(value, 12) for value in found.values["weight"][0].tolist()]
    [0.666666666667, 0.666666666667, 0.666666666667]
    """
    check_kind(kind)
    least = "at least 2, or the error of an entry would be unknown"
    need("num_probes", num_probes, whole(least=2), least, "The default is 32.", of="diagonal")
    with setup.opened(model, data) as workspace:
        matrix = matrix_of(kind, workspace.surface)
        completed = matrix == "hessian"
        swept = ggn_diagonal(workspace, LEAST_OUTPUT_PROBES, whole=completed)
        values = {name: entry.values for name, entry in swept.entries.items()}
        variance = {name: entry.variance for name, entry in swept.entries.items()}
        notes: dict[str, list[str]] = {name: [] for name in values}
        if swept.num_probes is not None:
            for note in notes.values():
                note.append(f"{swept.num_probes} output probes")
        bent = [name for name in values if name in swept.bends] if completed else []
        if bent:
            rest = residual_diagonal(
                workspace.products, bent, seed=setup.seed, num_probes=num_probes
            )
            for name, entry in rest.items():
                values[name] = values[name] + entry.values
                variance[name] = variance[name] + entry.variance
                how = f"{num_probes} weight probes of H − GGN", workspace.product_remark
                notes[name] += filter(None, how)
        for name, doubt in swept.doubts.items():
            notes[name].append(f"not confirmed by a second look: {doubt}")
        settings = workspace.settings()
    return Diagonal(
        values=values,
        stderr={name: each.sqrt() for name, each in variance.items()},
        exact={name: not note for name, note in notes.items()},
        text={name: ", ".join(note) for name, note in notes.items()},
        kind=kind,
        cost=workspace.cost,
        settings=settings,
    )
