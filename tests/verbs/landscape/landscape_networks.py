"""Networks and data that tests of slices share."""

import copy

import torch
from torch import nn

from spiritlevel.verbs import reference_problems as problems


def second(problem):
    """Another network of the same architecture."""
    other = copy.deepcopy(problem.model)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in other.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter += noise.to(parameter.dtype)
    return other


def normalized(seed):
    """A convnet with BatchNorm, whose running statistics are its own."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten())
    model = nn.Sequential(*model, nn.Linear(27, 3)).double()
    for _ in range(3):
        model(torch.randn(20, 1, 4, 4, dtype=torch.float64) * (2 + seed) + seed)
    nn.init.normal_(model[1].weight)
    nn.init.normal_(model[1].bias)
    return model.eval()


def images():
    problem = problems.relu_convnet()
    return problem.data, problem.inputs(), problem.targets()
