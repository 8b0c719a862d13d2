"""Which of the measured parameters act as matrices, and how.

Of a layer of a known kind that is clear from its kind. Of all others the graph of a first run
tells: the operation that uses a parameter says which of its dimensions hold the outputs. A
parameter of two dimensions whose uses cannot be read, such as those of recurrent cells, counts as
(out, in), which is how torch keeps them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .batches import BatchLocation
from .layers import AbstractMatrixRule
from .layers.broadcast import BroadcastRule
from .layers.embedding import EmbeddingRule
from .layers.patches import ConvRule, LinearRule, TransposedLinearRule
from .layers.scale import ScaleRule
from .operands import Operand
from .operations import Operation, Product, find_operations

if TYPE_CHECKING:
    from .surface import Surface


FIRST, CHUNK = 3, 16  # samples of the first run, and of later ones

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
        """As it is."""
        return weight


class TransposedStackedRule(StackedRule):
    """The same with (groups, in, out)."""

    rows_first = False

    def matrix(self, module: Any, weight: Tensor) -> Tensor:
        """(groups, in, out) becomes (groups, out, in)."""
        return weight.mT


def find_matrices(surface: Surface) -> dict[str, WeightMatrix]:
    """The matrices among the measured parameters, in their order."""
    parameters = surface.parameters
    known = {
        name: (rule, surface.module(layer), parameters[name].shape)
        for layer, rule in surface.matrix_rules.items()
        for name in [surface.weight_of(layer)]
    }
    others = {
        name: parameter
        for name, parameter in parameters.items()
        if name not in known
        and sum(size > 1 for size in parameter.shape) > 1
        and not isinstance(surface.rules.get(surface.layer_of(name)), ScaleRule)
    }
    found = known | (_from_graph(surface, others) if others else {})
    return {
        surface.row_of(name): WeightMatrix(name, parameters[name], *found[name])
        for name in parameters
        if name in found
    }


def _from_graph(surface: Surface, others: dict[str, nn.Parameter]) -> dict[str, _Acting]:
    found: dict[str, _Acting] = {}
    tables: set[str] = set()
    left = dict(others)  # parts that the first samples do not use are looked for in later ones
    with surface.preserved(), surface.processes.together():
        for part, batch in _runs(surface):
            with torch.enable_grad():
                outputs, _ = surface.outputs(batch, where=part)
                operations = find_operations(outputs, left)
            tables |= operations.tables
            for operation in operations.found:
                weight = operation.operands.get("weight")
                acting = None if weight is None else _as_matrix(operation)
                if weight is not None and acting is not None:
                    found.setdefault(weight.name, acting)
            changed = {o.name for each in operations.found for o in _changed_before(each)}
            for name in operations.explained - changed:
                del left[name]
            if operations.unexplained | changed >= left.keys():
                break
    # other processes have other samples, and all must agree
    agreed: dict[str, _Acting] = {}
    explained: set[str] = set()
    looked_up: set[str] = set()
    known = (found, others.keys() - left.keys(), tables)
    for matrices, names, rows in surface.processes.gather(known):
        agreed = matrices | agreed  # the first process that knows decides
        explained |= names
        looked_up |= rows
    for name in others.keys() - explained - agreed.keys():
        acting = _by_shape(surface, name, table=name in looked_up)
        if acting is not None:
            agreed[name] = acting
    return agreed


def _changed_before(operation: Operation) -> list[Operand]:
    """Parameters that are multiplied or shifted by numbers, not with the data, before their use."""
    size = operation.shape.numel()
    if not isinstance(operation.rule, BroadcastRule):
        return []
    return [operand for operand in operation.operands.values() if operand.view.numel() == size]


def _runs(surface: Surface) -> Iterator[tuple[BatchLocation, Any]]:
    yield BatchLocation(0), surface.first_samples(FIRST)
    yield from surface.chunks(CHUNK)


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


def _by_shape(surface: Surface, name: str, *, table: bool) -> _Acting | None:
    """The matrix of a parameter that the graph does not explain; a `table` is looked up in rows."""
    parameter = surface.parameters[name].detach()
    owner = surface.module(surface.layer_of(name))
    if (table or isinstance(owner, nn.EmbeddingBag)) and parameter.dim() == 2:
        rows = Product(_without_values(parameter.shape), num_embeddings=len(parameter))
        return EmbeddingRule(), rows, parameter.shape
    if parameter.dim() == 2:
        product = Product(parameter, in_features=parameter.shape[1])
        return LinearRule(), product, parameter.shape
    path = name
    while path:  # a parametrized convolution keeps its kernel further down
        path = path.rpartition(".")[0]
        module = surface.model.get_submodule(path)
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            kernel = (module.out_channels, module.in_channels // module.groups)
            return (ConvRule(), module, parameter.shape) if parameter.shape[:2] == kernel else None
    return None
