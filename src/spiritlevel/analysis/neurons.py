"""Flatness of every single neuron: ρ(j) of Petzka et al. 2019, Table 1."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import api
from ..engine.data_pass import NEEDS
from ..engine.precision import Method
from ..engine.row_estimator import estimate_rows
from ..measures.layer_weights import measured_weights
from ..measures.opening import open_workspace
from ..model.batches import Forward
from ..model.calls import measuring
from ..records import Progress


@dataclasses.dataclass(frozen=True, eq=False)
class Neurons:
    """ρ(j) = w_jᵀ H w_j of a layer's input neurons (in a convolution: its input channels)."""

    values: Tensor
    stderr: Tensor  # of the probes; zeros where the values are exact
    exact: bool  # whether they are the Hessian's own
    text: str  # otherwise how they were found, or of which matrix they are


@measuring
def neurons(
    model: nn.Module,
    data: Iterable[Any],
    *,
    loss: api.Loss = "cross_entropy",
    layers: str | Sequence[str] | None = None,
    head: str | None = None,
    forward: Forward | None = None,
    method: Method = "auto",
    rtol: float = 0.05,
    confidence: float = 0.95,
    max_passes: int = 100,
    memory: int | None = None,
    seed: int = 0,
    distributed: bool = True,
    progress: Progress | None = None,
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
    workspace = open_workspace(
        model,
        data,
        loss=loss,
        layers=layers,
        head=head,
        forward=forward,
        method=method,
        rtol=rtol,
        confidence=confidence,
        max_passes=max_passes,
        memory=memory,
        seed=seed,
        distributed=distributed,
        progress=progress,
    )
    workspace.want(NEEDS["rho"])
    with workspace.surface.preserved():
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
