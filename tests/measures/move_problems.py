"""Networks for the moves that need a layer of their own kind: BatchNorm and attention."""

import copy
import dataclasses

import torch
from torch import nn

from spiritlevel.symmetries import BOTH, find_moves
from spiritlevel.verbs.reference_problems import BATCHES, Problem

WIDTH = 4


class Attention(nn.Module):
    """Positions are the rows of an image.

    Query and key are frozen: otherwise the outputs bend, and exact measures become estimates.
    """

    def __init__(self):
        super().__init__()
        self.query, self.key = (nn.Linear(WIDTH, WIDTH).requires_grad_(False) for _ in range(2))
        self.value, self.out = nn.Linear(WIDTH, 6), nn.Linear(6, 2)

    def forward(self, x):
        x = x.flatten(1, 2)
        scores = self.query(x) @ self.key(x).mT
        return self.out(scores.softmax(dim=-1) @ self.value(x))


def batchnorm_net():
    return nn.Sequential(
        nn.Conv2d(1, 3, 2),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Conv2d(3, 4, 2),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


def attention_net():
    return nn.Sequential(Attention(), nn.ReLU(), nn.Flatten(), nn.Linear(2 * WIDTH, 3))


NETWORKS = {
    "batchnorm_absorb": batchnorm_net,
    "attention_rescale": attention_net,
    "unit_mix": attention_net,
}


def problem_with(move):
    """4×4 images in 3 classes, and a network that has the move; all drawn from one seed."""
    generator = torch.Generator().manual_seed(1)
    model = NETWORKS[move]().double().eval()

    def draw(*size):
        return torch.randn(size, generator=generator, dtype=torch.float64)

    with torch.no_grad():
        for parameter in model.parameters():
            values = draw(*parameter.shape) / max(parameter[0].numel(), 2) ** 0.5
            # small biases, so that the layers which move decide maxima over layers as well
            parameter.copy_(0.1 * values if parameter.dim() == 1 else 2 * values)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.add_(1.0)
                module.running_mean.copy_(0.1 * draw(module.num_features))
                module.running_var.copy_(0.5 + draw(module.num_features).abs())
    data = [
        (0.5 * draw(size, 1, WIDTH, WIDTH), torch.randint(3, (size,), generator=generator))
        for size in BATCHES
    ]
    return Problem(move, model, data, "cross_entropy")


def without_biases(problem):
    """A homogeneous network of the same kind."""
    model = copy.deepcopy(problem.model)
    for module in model.modules():
        if hasattr(module, "bias"):
            module.bias = None
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.zero_()
    return dataclasses.replace(problem, model=model)


def after(move, problem, generator):
    """The same problem after the move, as the audit finds and makes it."""
    found = find_moves(problem.model, lambda model: model(problem.inputs()), generator=generator)
    # far apart, so that the layers which move decide maxima over layers
    draw = torch.Generator().manual_seed(1)
    return dataclasses.replace(problem, model=found.moves[move].apply(problem.model, draw, BOTH))
