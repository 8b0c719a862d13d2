"""Flatness of every single neuron: ρ(j) of Petzka et al. 2019, Table 1."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from ..engine.data_pass import NEEDS
from ..engine.row_estimator import estimate_rows
from ..measures.requirements import measured_weights
from ..measures.setup import Setup, ToPrecisionByMethod
from ..measures.verb import verb
from ..records.content import ERROR, VALUE, Cell, Column, Part, Table, Text, Uncertain, number
from ..records.notebooks import Shown

if TYPE_CHECKING:
    from typing_extensions import Unpack

LARGEST = 5  # neurons that are shown
PROBES = "the standard error of the probes"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Neurons(Shown):
    """ρ(j) = w_jᵀ H w_j of a layer's input neurons (in a convolution: its input channels)."""

    HEADING: ClassVar = "Flatness of single neurons"

    values: Tensor
    stderr: Tensor  # of the probes; zeros where the values are exact
    exact: bool  # whether they are the Hessian's own
    text: str  # otherwise how they were found, or of which matrix they are

    def describe(self) -> list[Part]:
        """Their sum, and those that have most of it."""
        order = self.values.argsort(descending=True)[:LARGEST].tolist()
        rows: list[list[Cell]] = []
        for j in order:
            value, error = float(self.values[j]), float(self.stderr[j])
            rows.append([str(j), Uncertain(value, error), None if self.exact else error])
        columns = [
            Column("neuron"),
            Column("ρ(j)", digits=VALUE),
            Column("±", PROBES, digits=ERROR),
        ]
        mark, total = "exact" if self.exact else self.text, float(self.values.sum())
        said = f"{len(self.values)} neurons, sum of ρ(j) {number(total, VALUE)}, {mark}"
        return [Text([said]), Table(columns, rows).filled()]


@verb()
def neurons(
    setup: Setup,
    model: nn.Module,
    data: Iterable[Any],
    **shared: Unpack[ToPrecisionByMethod],
) -> dict[str, Neurons]:
    """ρ(j) of every neuron, by layer. The model is left exactly as it was.

    The arguments are those of `measure`. The sum and the maximum over a layer and over the network
    are the measures neuron.rho_sum and neuron.rho_max.

    >>> import spiritlevel as sl
    >>> net = nn.Linear(3, 1, bias=False).double()
    >>> x, y = torch.eye(3).double(), torch.zeros(3, 1).double()
    >>> (found,) = sl.neurons(net, (x, y), loss="mse").values()      # 2·mean x_j² · w_j²
    >>> bool(torch.allclose(found.values, net.weight[0].detach() ** 2 * 2 / 3))
    True
    """
    with setup.opened(model, data) as workspace:
        workspace.want(NEEDS["rho"])
        weights = measured_weights(workspace, "neuron.rho_sum")
        rows = estimate_rows(workspace, "rho", weights, dict.fromkeys(weights, 1.0))
        by_layer = {}
        for layer in weights:
            estimates = rows.neurons(layer)
            whole = rows.result({layer: 1.0})
            by_layer[layer] = Neurons(
                values=torch.tensor([e.value for e in estimates], dtype=torch.float64),
                stderr=torch.tensor([e.stderr for e in estimates], dtype=torch.float64),
                exact=whole.exact,
                text=whole.text,
            )
    return by_layer
