"""What a library is asked, and how an answer is made: one way or several for each question.

An answer is a number, or the numbers of all layers or entries by name. A library that knows when to
stop, or is exact, has ways that take a seed alone; one that must be told how many products with the
matrix to take has ways that take these, too.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

Data = tuple[Tensor, Tensor]
Answer = float | Mapping[str, Tensor]
STEPS = 40  # of Lanczos, for a density from one vector
EXACT = "exact trace"
TRACES = {f"trace to {percent} %": percent / 100 for percent in (10, 3, 1)}
DEFAULT = "default trace"
LAYERS = "traces of all layers to 10 %"
GGN = "GGN trace to 10 %"
DIAGONAL = "Hessian diagonal"
LARGEST = "largest eigenvalue to 1 %"
DENSITY = "density"
TOLERANCES = {**TRACES, LAYERS: 0.1, GGN: 0.1, LARGEST: 0.01}
# "formula": random vectors one at a time, as many as the spread of one asks for;
# "ladder": so many that the answers to several seeds are close enough
Products = Literal["none", "formula", "ladder", "fixed"]


@dataclasses.dataclass(frozen=True)
class Way:
    """One way to an answer: `call(seed, products)`."""

    name: str
    call: Callable[[int, int], Answer]
    products: Products = "none"
    steps: tuple[int, ...] = ()  # numbers of products to try, in this order
    has_all: bool = False  # the call gives the whole diagonal, from which many answers are read


@dataclasses.dataclass(frozen=True)
class Network:
    """What a user of another library must know about a network."""

    model: nn.Module
    data: Data
    is_piecewise_linear: bool  # then the GGN is the Hessian
    part: int | None  # samples at a time, for a library whose memory grows with them


class Scores(nn.Module):
    """Plain scores, one row a prediction: peers know neither outputs of others nor positions."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):  # the only one with a second derivative
            scores = self.model(x)
        scores = scores if isinstance(scores, Tensor) else scores.logits
        return scores.flatten(0, -2)


class Library(abc.ABC):
    """One library on one network. `ways` is empty for a question that it does not answer."""

    name: str
    package: str  # as it is installed

    def __init__(self, network: Network) -> None:
        self.network, self.model, self.data = network, network.model, network.data
        self.scores, self.flat = Scores(self.model), (self.data[0], self.data[1].flatten())

    @abc.abstractmethod
    def ways(self, question: str) -> list[Way]: ...


def total(diagonal: Mapping[str, Tensor]) -> float:
    return sum(float(entries.double().sum()) for entries in diagonal.values())


def by_layer(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Sums of all entries of a layer, from those of its parameters."""
    layers: dict[str, Tensor] = {}
    for parameter, entries in values.items():
        layer = parameter.rpartition(".")[0]
        layers[layer] = layers.get(layer, torch.zeros(())) + entries.double().sum().cpu()
    return layers


def read(question: str, diagonal: Mapping[str, Tensor]) -> Answer:
    """The answer to any question about the diagonal, by a library that has all of it."""
    if question == DIAGONAL:
        return diagonal
    return by_layer(diagonal) if question == LAYERS else total(diagonal)
