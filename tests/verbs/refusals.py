"""A network and data that are measured, and calls that must be refused."""

import pytest
import torch
from torch import nn

import spiritlevel as sl

NAN, INF = float("nan"), float("inf")


def mlp(*extra, outputs=3):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Linear(4, 5), *extra, nn.ReLU(), nn.Linear(5, outputs)]
        return nn.Sequential(*layers).double().eval()


def batches(*sizes):
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(size, 4, generator=generator, dtype=torch.float64),
            torch.randint(3, (size,), generator=generator),
        )
        for size in sizes
    ]


def refused(match, model=None, data=None, **options):
    """The call is refused with a message that matches; the message comes back."""
    data = batches(4, 2) if data is None else data
    with pytest.raises(sl.SpiritlevelError, match=match) as caught:
        sl.measure(mlp() if model is None else model, data, **options)
    return str(caught.value)
