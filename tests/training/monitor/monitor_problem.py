"""A small network with BatchNorm and dropout, and data for it."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

CLASSES = 3


def problem(seed: int = 0) -> tuple[nn.Module, TensorDataset]:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.3), nn.Linear(12, CLASSES)
    )
    return model, TensorDataset(torch.randn(40, 6), torch.randint(0, CLASSES, (40,)))
