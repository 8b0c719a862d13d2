"""Families of changes of a weight, and what they do at the output of a layer.

With δ_t the gradient of some function of the outputs at position t of a layer, the derivative of
that function along a change Δ of the weight is Σ_t ⟨δ_t, Δ a_t⟩. So a family needs to know Δ a_t
only: no change of a weight is formed for all of them at once, and no gradient of a weight at all.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ...model.layer_hooks import LayerUse
from ...model.layers import Layout
from ...model.layers.output_changes import ColumnNoise, output_change, scaled_columns
from ...model.weight_matrices import WeightMatrix
from ..sweep.listeners import at_least_float

Slopes = Callable[[Tensor], Tensor]  # the gradient at an output → the derivatives, shape (N, count)


class AbstractFamily(abc.ABC):
    """Some changes of some weights; each is a direction, in the order of `names`."""

    names: Sequence[str]  # the parameters

    @abc.abstractmethod
    def count(self, name: str) -> int:
        """How many changes of a parameter there are."""

    @abc.abstractmethod
    def slopes(self, use: LayerUse, layout: Layout, name: str) -> Slopes:
        """The derivatives along all changes of a parameter, as far as this use is concerned."""

    @property
    def spans(self) -> dict[str, slice]:
        """Where the directions of each parameter are among all."""
        ends = itertools.accumulate((self.count(name) for name in self.names), initial=0)
        return dict(
            zip(self.names, itertools.starmap(slice, itertools.pairwise(ends)), strict=True)
        )

    @property
    def size(self) -> int:
        """How many changes of all parameters there are."""
        return sum(self.count(name) for name in self.names)

    def by_name(self, values: Tensor) -> dict[str, Tensor]:
        """One value for each direction, divided by parameter."""
        return {name: values[span] for name, span in self.spans.items()}


class GivenChanges(AbstractFamily):
    """Changes that are given one by one, each made when it is needed."""

    def __init__(self, counts: Mapping[str, int], change: Callable[[str, int], Tensor]) -> None:
        """`change` gives the i-th change of a parameter, in its shape."""
        self.names, self._counts, self.change = list(counts), counts, change

    def only(self, names: Sequence[str]) -> GivenChanges:
        """Those of some of the parameters."""
        return GivenChanges({name: self._counts[name] for name in names}, self.change)

    def count(self, name: str) -> int:
        """As many as were given."""
        return self._counts[name]

    def slopes(self, use: LayerUse, layout: Layout, name: str) -> Slopes:
        """Σ_t ⟨δ_t, Δ a_t⟩ with Δ a_t computed once for all columns."""
        moved = [self.at_output(use, name, i).detach() for i in range(self.count(name))]
        rows = torch.stack([layout.split(each).flatten(1) for each in moved], dim=2)

        def slopes(delta: Tensor) -> Tensor:
            flat = layout.split(at_least_float(delta)).flatten(1)
            return torch.bmm(flat[:, None], at_least_float(rows)).squeeze(1).double()

        return slopes

    def at_output(self, use: LayerUse, name: str, i: int) -> Tensor:
        """Δ a_t of one change, in the shape of the output."""
        return output_change(use, self.change(name, i).to(use.output.dtype))


class NeuronDeletions(AbstractFamily):
    """One change for each input neuron (input channel) of a weight: its column becomes 0."""

    def __init__(self, matrices: Mapping[str, WeightMatrix]) -> None:
        """`matrices` are those of the parameters, by the parameters' names."""
        self.names, self.matrices = list(matrices), matrices

    def count(self, name: str) -> int:
        """Neurons of all groups."""
        matrix = self.matrices[name]
        return matrix.of(matrix.parameter.detach()).shape[0] * matrix.neurons

    def slopes(self, use: LayerUse, layout: Layout, name: str) -> Slopes:
        """−Σ_t a_tj (Wᵀδ_t)_j: Wᵀδ is the gradient in signs on the columns."""
        matrix, count = self.matrices[name], self.count(name)
        on_rows = not matrix.rule.rows_first
        weight, a = matrix.parameter.detach().to(use.output.dtype), use.input
        if a.is_floating_point():
            a = a.to(weight.dtype)  # under autocast the layer itself did that

        def slopes(delta: Tensor) -> Tensor:
            signs = delta.new_ones(layout.num_samples, count).requires_grad_()
            with torch.enable_grad():
                v = scaled_columns(use, a, layout, ColumnNoise(signs, weight, on_rows))
            (found,) = torch.autograd.grad(v, signs, delta.to(v.dtype))
            return -found.double()

        return slopes
