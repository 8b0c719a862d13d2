"""Which of the measured parameters act as matrices, and how.

Of a layer of a known kind that is clear from its kind. Of all others the graph of a first run
tells: the operation that uses a parameter says which of its dimensions hold the outputs. A
parameter of two dimensions whose uses cannot be read, such as those of recurrent cells, counts as
(out, in), which is how torch keeps them.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch
from torch import Tensor, nn

from .distributed import Processes
from .layers import AbstractMatrixRule
from .layers.broadcast import BroadcastRule
from .layers.embedding import EmbeddingRule
from .layers.patches import ConvRule, LinearRule, TransposedLinearRule
from .layers.scale import ScaleRule
from .named_layers import Layers
from .operands import Operand
from .operations import Operation, Product, find_operations

_Acting = tuple[AbstractMatrixRule, Any, torch.Size]  # rule, geometry, and the shape they expect


@dataclasses.dataclass(frozen=True)
class WeightMatrix:
    """A parameter that acts as a matrix, or as several: one for each group."""

    name: str
    parameter: nn.Parameter
    rule: AbstractMatrixRule
    module: Any  # the layer, or what the rule needs to know of the operation
    shape: torch.Size  # in which the operation sees the parameter

    def of(self, tensor: Tensor) -> Tensor:
        """View (…, *parameter) as (…, groups, rows, columns)."""
        leading = tensor.shape[: tensor.dim() - self.parameter.dim()]
        return self.rule.matrix(self.module, tensor.reshape(*leading, *self.shape))

    @functools.cached_property
    def neurons(self) -> int:
        """Input neurons of one group; j owns the columns j, j + neurons, j + 2·neurons, ..."""
        return self.rule.neurons(self.module)


class StackedRule(LinearRule):
    """Several matrices (groups, out, in) in one parameter, one for each expert, say."""

    def matrix(self, module: Any, weight: Tensor) -> Tensor:
        """The weight: its dimensions are in this order already."""
        return weight


class TransposedStackedRule(StackedRule):
    """Several matrices (groups, in, out) in one parameter."""

    rows_first = False

    def matrix(self, module: Any, weight: Tensor) -> Tensor:
        """(groups, in, out) becomes (groups, out, in)."""
        return weight.mT


class MatrixSearch:
    """The search for the matrices among the measured parameters.

    `left` are those that no kind of layer explains: runs of the model tell about them.
    """

    def __init__(self, layers: Layers) -> None:
        """Begin with what is clear from the kinds of the layers."""
        self._layers = layers
        parameters = layers.parameters
        self._known: dict[str, _Acting] = {
            name: (rule, layers.module(layer), parameters[name].shape)
            for layer, rule in layers.matrix_rules.items()
            for name in [layers.weight_of(layer)]
        }
        self._others = {
            name: parameter
            for name, parameter in parameters.items()
            if name not in self._known
            and sum(size > 1 for size in parameter.shape) > 1
            and not isinstance(layers.rules.get(layers.of(name)), ScaleRule)
        }
        # parts that the first samples do not use are looked for in later ones
        self.left = dict(self._others)
        self._seen: dict[str, _Acting] = {}
        self._tables: set[str] = set()

    def ends_with(self, outputs: Tensor) -> bool:
        """Learn from the graph of these outputs; whether there is nothing more to learn."""
        operations = find_operations(outputs, self.left)
        self._tables |= operations.tables
        for operation in operations.found:
            weight = operation.operands.get("weight")
            acting = None if weight is None else _as_matrix(operation)
            if weight is not None and acting is not None:
                self._seen.setdefault(weight.name, acting)
        changed = {o.name for each in operations.found for o in _changed_before(each)}
        for name in operations.explained - changed:
            del self.left[name]
        return operations.unexplained | changed >= self.left.keys()

    def agree(self, processes: Processes) -> None:
        """Learn from the other processes, which have other samples; shapes tell the rest."""
        explained: set[str] = set()
        looked_up: set[str] = set()
        mine = (self._seen, self._others.keys() - self.left.keys(), self._tables)
        self._seen = {}
        for matrices, names, tables in processes.gather(mine):
            self._seen = matrices | self._seen  # the first process that knows decides
            explained |= names
            looked_up |= tables
        for name in self._others.keys() - explained - self._seen.keys():
            acting = _by_shape(self._layers, name, table=name in looked_up)
            if acting is not None:
                self._seen[name] = acting

    def found(self) -> dict[str, WeightMatrix]:
        """The matrices by layer or own name, in the order of the parameters."""
        acting, parameters = self._known | self._seen, self._layers.parameters
        return {
            self._layers.row_of(name): WeightMatrix(name, parameters[name], *acting[name])
            for name in parameters
            if name in acting
        }


def _changed_before(operation: Operation) -> list[Operand]:
    """Parameters that are multiplied or shifted by numbers, not with the data, before their use."""
    size = operation.shape.numel()
    if not isinstance(operation.rule, BroadcastRule):
        return []
    return [operand for operand in operation.operands.values() if operand.view.numel() == size]


def _as_matrix(operation: Operation) -> _Acting | None:
    """How the whole parameter acts, of which the operation may see a part only."""
    weight, rule = operation.operands["weight"], operation.rule
    if not isinstance(rule, AbstractMatrixRule):
        return None
    if weight.is_whole:
        shape = weight.view.shape
        return rule, dataclasses.replace(operation.geometry, weight=_without_values(shape)), shape
    if not isinstance(rule, LinearRule):
        return None
    # A part is a matrix of shape (in, out): which dimensions of the parameter do these go along?
    strides = torch.empty(weight.parameter.shape, device="meta").stride()
    along = [strides.index(s) if s in strides else -1 for s in weight.view.stride()]
    num_dims = weight.parameter.dim()
    kinds: dict[tuple[int, ...], type[LinearRule]] = {
        (2, 1, 0): LinearRule,
        (2, 0, 1): TransposedLinearRule,
        (3, 2, 1): StackedRule,
        (3, 1, 2): TransposedStackedRule,
    }
    kind = kinds.get((num_dims, *along))
    if kind is None:
        return None
    shape = weight.parameter.shape
    return kind(), Product(_without_values(shape), in_features=shape[along[0]]), shape


def _without_values(shape: torch.Size) -> Tensor:
    """In place of a weight of which the rules only need the shape."""
    return torch.empty(shape, device="meta")


def _by_shape(layers: Layers, name: str, *, table: bool) -> _Acting | None:
    """The matrix of a parameter that the graph does not explain; a `table` is looked up in rows."""
    parameter = layers.parameters[name].detach()
    owner = layers.module(layers.of(name))
    if (table or isinstance(owner, nn.EmbeddingBag)) and parameter.dim() == 2:
        rows = Product(_without_values(parameter.shape), num_embeddings=len(parameter))
        return EmbeddingRule(), rows, parameter.shape
    if parameter.dim() == 2:
        product = Product(parameter, in_features=parameter.shape[1])
        return LinearRule(), product, parameter.shape
    path = name
    while path:  # a parametrized convolution keeps its kernel further down
        path = path.rpartition(".")[0]
        module = layers.model.get_submodule(path)
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            kernel = (module.out_channels, module.in_channels // module.groups)
            return (ConvRule(), module, parameter.shape) if parameter.shape[:2] == kernel else None
    return None
