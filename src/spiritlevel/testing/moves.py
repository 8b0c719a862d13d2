"""Every known move, on small networks that have it: the weights change, the function stays."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from .. import symmetries
from ..verbs import reference_problems
from ..verbs.reference_problems import BATCHES, Problem

WIDTH = 4


class _AttendedRows(nn.Module):
    """Positions are the rows of an image.

    Query and key are frozen: otherwise the outputs bend, and exact measures become estimates.
    """

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = (nn.Linear(WIDTH, WIDTH).requires_grad_(False) for _ in range(2))
        self.value, self.out = nn.Linear(WIDTH, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1, 2)
        scores = self.query(x) @ self.key(x).mT
        out: Tensor = self.out(scores.softmax(dim=-1) @ self.value(x))
        return out


def _normalized_images() -> nn.Module:
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


class _Centred(nn.Module):
    """Takes the mean over the channels away, as a normalization does, and is linear."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=1, keepdim=True)


def _centred_images() -> nn.Module:
    """Whatever is written or read is free of a mean, of what a BatchNorm adds, or of a bias."""
    return nn.Sequential(
        nn.Conv2d(1, 3, 2),
        _Centred(),
        nn.Conv2d(3, 4, 2),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16, 5),
        nn.Linear(5, 3),
    )


def _attended_images() -> nn.Module:
    return nn.Sequential(_AttendedRows(), nn.ReLU(), nn.Flatten(), nn.Linear(2 * WIDTH, 3))


_NETWORKS = {
    "normalized_images": _normalized_images,
    "centred_images": _centred_images,
    "attended_images": _attended_images,
}
CHAINS = ("relu_mlp", "relu_convnet")
NETWORKS = {  # on which each move is made
    "layer_rescale": CHAINS,
    "neuron_rescale": CHAINS,
    "unit_permute": CHAINS,
    "batch_split": CHAINS,
    "batchnorm_absorb": ("normalized_images",),
    "batchnorm_fold": ("normalized_images",),
    "attention_rescale": ("attended_images",),
    "unit_mix": ("attended_images",),
    "logit_shift": CHAINS,
    "free_shift": ("centred_images",),
}


def problem_named(name: str, dtype: torch.dtype = torch.float64, *, biases: bool = True) -> Problem:
    """A problem, made anew; without biases it is homogeneous."""
    problem = _images(name) if name in _NETWORKS else reference_problems.ALL[name](dtype)
    return problem if biases else _without_biases(problem)


@functools.cache
def before_and_after(move: str, network: str, *, biases: bool = True) -> tuple[Problem, Problem]:
    """A problem, and the same after the move."""
    problem = problem_named(network, biases=biases)
    return problem, moved(move, problem)


def moved(move: str, problem: Problem) -> Problem:
    """The problem after a move that is large enough to be seen in every layer it is made in."""
    generator = torch.Generator().manual_seed(0)
    if move in _MADE_BY_NAME:
        return _MADE_BY_NAME[move](problem, generator)
    x = problem.inputs()

    def vary(index: int) -> Callable[[nn.Module], Tensor]:
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(index)).to(x)
        return lambda model: model(x + noise)

    found = symmetries.find_moves(
        problem.model, lambda model: model(x), vary=vary, generator=generator
    )
    # far apart, so that the layers which move decide maxima over layers
    draw = torch.Generator().manual_seed(1)
    model = found.moves[move].apply(problem.model, draw, symmetries.BOTH)
    return dataclasses.replace(problem, model=model)


def _images(name: str) -> Problem:
    """4×4 images in 3 classes, and a network for them; all drawn from one seed."""
    generator = torch.Generator().manual_seed(1)
    model = _NETWORKS[name]().double().eval()

    def draw(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64)

    with torch.no_grad():
        for parameter in model.parameters():
            values = draw(*parameter.shape) / max(parameter[0].numel(), 2) ** 0.5
            # small biases, so that the layers which move decide maxima over layers as well
            parameter.copy_(0.1 * values if parameter.dim() == 1 else 2 * values)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                assert module.running_mean is not None
                assert module.running_var is not None
                module.weight.add_(1.0)
                module.running_mean.copy_(0.1 * draw(module.num_features))
                module.running_var.copy_(0.5 + draw(module.num_features).abs())
    data = [
        (0.5 * draw(size, 1, WIDTH, WIDTH), torch.randint(3, (size,), generator=generator))
        for size in BATCHES
    ]
    return Problem(name, model, data, "cross_entropy")


def _without_biases(problem: Problem) -> Problem:
    model = copy.deepcopy(problem.model)
    for module in model.modules():
        if "bias" in dict(module.named_parameters(recurse=False)):
            module.register_parameter("bias", None)
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            module.running_mean.zero_()
    return dataclasses.replace(problem, name=f"{problem.name} without biases", model=model)


def _factors(size: int, generator: torch.Generator) -> Tensor:
    """Between 5 and 25: far from 1, so that what moves moves visibly."""
    return 5 + 20 * torch.rand(size, generator=generator, dtype=torch.float64)


def _between_layers(move: str, problem: Problem, generator: torch.Generator) -> Problem:
    model = problem.model
    for pair in problem.pairs:
        weight = model.get_submodule(pair[0]).weight
        assert isinstance(weight, Tensor)
        if move == "layer_rescale":
            model = symmetries.rescale_layers(model, *pair, float(_factors(1, generator)))
        elif move == "neuron_rescale":
            model = symmetries.rescale_neurons(model, *pair, _factors(len(weight), generator))
        else:  # leaves no unit where it was
            model = symmetries.permute_units(model, *pair, torch.arange(len(weight)).roll(1))
    return dataclasses.replace(problem, model=model)


def _shift_logits(problem: Problem, generator: torch.Generator) -> Problem:
    model = copy.deepcopy(problem.model)
    head = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    with torch.no_grad():
        for parameter in head.parameters():
            size = _factors(1, generator) * parameter.square().mean().sqrt()
            draws = torch.randn(parameter[:1].shape, generator=generator, dtype=torch.float64)
            parameter.add_(size * draws)
    return dataclasses.replace(problem, model=model)


def _split_otherwise(problem: Problem, generator: torch.Generator) -> Problem:
    x, y = problem.inputs(), problem.targets()
    order = torch.randperm(len(x), generator=generator)
    data = [(x[part], y[part]) for part in order.split([2, 5, 1])]
    return dataclasses.replace(problem, data=data)


_MADE_BY_NAME: dict[str, Callable[[Problem, torch.Generator], Problem]] = {
    "layer_rescale": functools.partial(_between_layers, "layer_rescale"),
    "neuron_rescale": functools.partial(_between_layers, "neuron_rescale"),
    "unit_permute": functools.partial(_between_layers, "unit_permute"),
    "logit_shift": _shift_logits,
    "batch_split": _split_otherwise,
}
