"""How well a network does on the data: its mean loss, and its accuracy where there are classes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from ..engine.loss_and_accuracy import LossAndAccuracy
from ..measures.setup import Setup
from ..measures.verb import measuring
from ..model.batches import num_samples


@dataclasses.dataclass(frozen=True)
class Performance:
    """Mean loss, and the share of targets that are predicted; None where there are no classes."""

    loss: float
    accuracy: float | None
    num_samples: int


@measuring()
def performance(setup: Setup, model: nn.Module, data: Iterable[Any]) -> Performance:
    """Run the network once over the data.

    >>> x, y = torch.eye(3), torch.tensor([0, 1, 0])
    >>> net = nn.Linear(3, 3, bias=False)
    >>> with torch.no_grad():
    ...     _ = net.weight.copy_(9 * torch.eye(3))
    >>> round(performance(Setup(), net, (x, y)).accuracy, 3)
    0.667
    """
    with setup.whole().opened(model, data) as workspace, torch.no_grad():
        surface = workspace.surface
        fit, count = (
            LossAndAccuracy(surface.loss, surface.device),
            torch.zeros((), dtype=torch.int64),
        )
        size = workspace.plan.footprint.chunk(workspace.memory, sweep=False)
        for where, batch in surface.chunks(size):
            fit.add(*surface.outputs(batch, where=where))
            count += num_samples(batch)
    fit.reduce(surface.processes)
    surface.processes.sum_(count)
    mean = math.nan if fit.mean_loss is None else fit.mean_loss
    return Performance(mean, fit.accuracy, int(count))
