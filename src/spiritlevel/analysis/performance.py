"""How well a network does on the data: its mean loss, and its accuracy where there are classes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from .. import api
from ..model.batches import num_samples
from ..model.calls import measuring
from ..model.losses import CrossEntropy


@dataclasses.dataclass(frozen=True)
class Performance:
    """Mean loss, and the share of targets that are predicted; None where there are no classes."""

    loss: float
    accuracy: float | None
    num_samples: int


@measuring
def performance(model: nn.Module, data: Iterable[Any], **arguments: Any) -> Performance:
    """Run the network once over the data; takes what `measure` takes.

    >>> x, y = torch.eye(3), torch.tensor([0, 1, 0])
    >>> net = nn.Linear(3, 3, bias=False)
    >>> with torch.no_grad():
    ...     _ = net.weight.copy_(9 * torch.eye(3))
    >>> round(performance(net, (x, y)).accuracy, 3)
    0.667
    """
    wanted = {key: value for key, value in arguments.items() if key not in ("layers", "measures")}
    workspace = api.open_measurement(model, data, **wanted)
    surface, loss = workspace.surface, workspace.surface.loss
    sums = torch.zeros(4, dtype=torch.float64)  # of losses, of errors, of weights, of samples
    with surface.preserved(), torch.no_grad():
        size = workspace.plan.footprint.chunk(workspace.memory, sweep=False)
        for where, batch in surface.chunks(size):
            outputs, targets = surface.outputs(batch, where=where)
            values = [loss.values(outputs.double(), targets)]
            values += [loss.errors(outputs, targets)] if isinstance(loss, CrossEntropy) else []
            for place, each in enumerate(values):
                sums[place] += each.double().sum().cpu()
            sums[2] += loss.weights(outputs, targets).double().sum().cpu()
            sums[3] += num_samples(batch)
    surface.processes.sum_(sums)
    accuracy = 1 - float(sums[1] / sums[2]) if isinstance(loss, CrossEntropy) else None
    return Performance(float(sums[0] / sums[2]), accuracy, int(sums[3]))
