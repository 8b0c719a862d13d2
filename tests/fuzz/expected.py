"""The measures by definition, from dense matrices."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from fuzz.oracle import Truth, Weight, matrix_positions


@dataclasses.dataclass(frozen=True)
class Quantity:
    """A number, and the sum of the sizes of its terms: its round-off is relative to that."""

    value: float
    size: float

    def __add__(self, other: Quantity) -> Quantity:
        return Quantity(self.value + other.value, self.size + other.size)


@dataclasses.dataclass(frozen=True)
class Expected:
    """Of one measure: the network, and each layer where it has layers."""

    whole: Quantity
    layers: dict[str, Quantity] = dataclasses.field(default_factory=dict)


def sum_of(terms: Tensor, factor: float = 1.0) -> Quantity:
    """A sum that remembers its terms."""
    return Quantity(factor * float(terms.sum()), factor * float(terms.abs().sum()))


def largest(quantities: list[Quantity]) -> Quantity:
    """The one with the largest value."""
    return max(quantities, key=lambda quantity: quantity.value)


def kappa(H: Tensor, weight: Weight) -> Quantity:
    """Sum over rows s and t of ⟨w_s, w_t⟩ Tr H_(s,t), group by group."""
    w = weight.values.flatten()
    total = Quantity(0.0, 0.0)
    for group in weight.positions:
        rows = group.flatten(1)
        products = w[rows] @ w[rows].T
        for column in rows.T:
            total += sum_of(products * H[column][:, column])
    return total


def rho(H: Tensor, weight: Weight) -> list[Quantity]:
    """w_j' H_jj w_j of every input neuron."""
    w = weight.values.flatten()
    neurons = [group[:, j].flatten() for group in weight.positions for j in range(group.shape[1])]
    return [sum_of(w[j][:, None] * H[j][:, j] * w[j]) for j in neurons]


def of_matrix(truth: Truth, matrix: Tensor, names: tuple[str, ...]) -> dict[str, Expected]:
    """The asked-for measures of the Hessian or of the Gauss-Newton matrix."""
    blocks = {name: matrix[part, part] for name, part in truth.slices.items()}
    weights = {w.layer: w for w in truth.weights()}
    block_of = {layer: blocks[weight.name] for layer, weight in weights.items()}

    def by_layer(quantities: dict[str, Quantity]) -> Expected:
        return Expected(sum(quantities.values(), Quantity(0.0, 0.0)), quantities)

    traces = {
        layer: sum((sum_of(blocks[p].diagonal()) for p in parameters), Quantity(0.0, 0.0))
        for layer, parameters in truth.layers().items()
    }
    kappas = {layer: kappa(block_of[layer], w) for layer, w in weights.items()}
    rhos = {layer: rho(block_of[layer], w) for layer, w in weights.items()}
    scaled = {
        layer: sum_of(block_of[layer].diagonal(), float(w.values.square().sum()))
        for layer, w in weights.items()
    }
    expected = {"curvature.trace": by_layer(traces), "curvature.ggn_trace": by_layer(traces)}
    if weights:
        expected |= {
            "relative.kappa": by_layer(kappas),
            "relative.kappa_max": Expected(largest(list(kappas.values()))),
            "neuron.rho_sum": by_layer({n: sum(q, Quantity(0.0, 0.0)) for n, q in rhos.items()}),
            "neuron.rho_max": Expected(
                largest([q for every in rhos.values() for q in every]),
                {layer: largest(every) for layer, every in rhos.items()},
            ),
            "scaled.trace": by_layer(scaled),
            "scaled.trace_max": Expected(largest(list(scaled.values()))),
        }
    if "curvature.trace_squared" in names:
        expected["curvature.trace_squared"] = Expected(sum_of(matrix.square()))
    return {name: each for name, each in expected.items() if name in names}


def eigenvalues(matrix: Tensor) -> Tensor:
    """In ascending order."""
    return torch.linalg.eigvalsh((matrix + matrix.T) / 2)


def scaled_lambda_max(truth: Truth, matrix: Tensor) -> Expected:
    """‖w‖² times the largest eigenvalue of each weight's block, and the sum."""
    layers = {}
    for weight in truth.weights():
        part = truth.slices[weight.name]
        values = eigenvalues(matrix[part, part])
        norm = float(weight.values.square().sum())
        layers[weight.layer] = Quantity(norm * float(values[-1]), norm * float(values.abs().max()))
    return Expected(sum(layers.values(), Quantity(0.0, 0.0)), layers)


def of_head(truth: Truth, layer: str) -> tuple[dict[str, Quantity], Tensor]:
    """The measures of the last layer's weight alone, and its eigenvalues.

    Where the weight is tied, its other use is not part of these numbers: here it is untied.
    """
    model: Any = copy.deepcopy(truth.model).requires_grad_(False)
    module: nn.Module = model if layer == "(model)" else model.get_submodule(layer)
    module.weight = nn.Parameter(module.weight.detach().clone())
    alone = Truth(model, truth.batches, truth.run, truth.mean_loss)
    H = alone.hessian()
    positions = matrix_positions({"": module}, "", "weight", module.weight.shape)
    assert positions is not None, f"the head {layer!r} does not act as a matrix"
    weight = Weight(layer, "weight", module.weight.detach(), positions)
    quantities = {
        "head.trace": sum_of(H.diagonal()),
        "head.kappa": kappa(H, weight),
        "head.trace_squared": sum_of(H.square()),
    }
    return quantities, eigenvalues(H)
