"""What a probe in weight space measures: E⟨v, Hv⟩ for random v is Tr(M H) with M = E[v vᵀ].

    trace   M = I                        v = ξ
    kappa   M = W Wᵀ in every column     v = R ξ with R Rᵀ = W Wᵀ     (κ = Σ ⟨w_s,w_s'⟩ Tr H_ss')
    rho     M = Σ_j w_j w_jᵀ             v = Σ_j ξ_j w_j               (ρ(j) = w_jᵀ H w_j)

With standardized features κ has v = R ξ V⁻¹ with R Rᵀ = W V² Wᵀ.

ξ are random signs, or normal numbers where there are few probes. A row is what gets its own
estimate: a parameter for the trace, a layer for κ and ρ. Since the ξ of different rows are
independent, ⟨v_l, (Hv)_l⟩ estimates every row l from the same product.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ...math.signs import random_normals, random_signs
from ...model.layers import KappaWeight
from ...model.surface import Surface
from ..sweep.feature_scales import by_column
from ..sweep.sums import RowKind
from .parameter_space import ParameterSpace

_STREAMS: dict[RowKind, int] = {"trace": 0, "kappa": 1, "kappa_std": 1, "kappa_var": 1, "rho": 2}


@dataclasses.dataclass(frozen=True)
class _Row:
    """One row: the linear map from its ξ to a direction of its parameter."""

    parameter: str
    size: int  # of ξ
    lift: Callable[[Tensor], Tensor]  # ξ -> v, both flat
    drop: Callable[[Tensor], Tensor]  # the transpose of `lift`


class Metric:
    """The linear map from ξ to directions, over some rows."""

    def __init__(
        self,
        surface: Surface,
        kind: RowKind,
        rows: Sequence[str],
        scales: Mapping[str, Tensor] | None = None,
    ) -> None:
        """`rows` are names of parameters (trace) or of layers whose weight is a matrix.

        `scales` are those of the features by layer, for a κ with standardized features.
        """
        self.kind: RowKind = kind
        if kind in ("trace", "rho"):
            make = _identity if kind == "trace" else _rho
            self.rows = {name: make(surface, name) for name in rows}
        else:
            self.rows = {name: _kappa(surface, name, (scales or {}).get(name)) for name in rows}
        self.space = ParameterSpace(surface, [row.parameter for row in self.rows.values()])
        self.parts: dict[str, slice] = {}
        end = 0
        for name, row in self.rows.items():
            self.parts[name] = slice(end, end + row.size)
            end += row.size
        self.size = end

    def draw(self, seed: int, first: int, count: int, *, normal: bool) -> Tensor:
        """ξ of probes first, first + 1, …; each depends only on the seed and its number."""
        numbers = torch.arange(first, first + count, device=self.space.device)
        stream = 1000 + _STREAMS[self.kind]  # different from those of the output probes
        draw = random_normals if normal else random_signs
        return draw(seed, stream, numbers, self.size, self.space.dtype)

    def lift(self, xi: Tensor) -> Tensor:
        """The directions v for these ξ, shape (count, parameters)."""
        return torch.stack(
            [
                self.space.join([row.lift(v[self.parts[name]]) for name, row in self.rows.items()])
                for v in xi
            ]
        )

    def drop(self, vectors: Tensor) -> Tensor:
        """The transpose of `lift`, shape (count, size)."""
        return torch.stack(
            [
                torch.cat(
                    [row.drop(v[self.space.slices[row.parameter]]) for row in self.rows.values()]
                )
                for v in vectors
            ]
        )

    def by_row(self, left: Tensor, right: Tensor) -> Tensor:
        """⟨left, right⟩ within each row, for (count, size) each: shape (count, rows), float64."""
        values = [
            torch.linalg.vecdot(left[:, part].double(), right[:, part].double())
            for part in self.parts.values()  # one after another: a copy in float64 is large
        ]
        return torch.stack(values, dim=1)


def _identity(surface: Surface, name: str) -> _Row:
    return _Row(name, surface.parameters[name].numel(), lambda xi: xi, lambda v: v)


def _matrix(surface: Surface, layer: str) -> tuple[str, Tensor, Tensor]:
    """The weight's name, the weight as (g, out, in), and each entry's index in the weight."""
    matrix = surface.matrices[layer]
    weight = matrix.parameter.detach()
    index = torch.arange(weight.numel(), device=weight.device).view(weight.shape)
    return matrix.name, matrix.of(weight), matrix.of(index).flatten()


def _kappa(surface: Surface, layer: str, scale: Tensor | None) -> _Row:
    name, matrix, index = _matrix(surface, layer)
    g, out, width = matrix.shape
    inverse = matrix.new_ones(1, 1, 1)
    if scale is not None:
        relative = KappaWeight.of(matrix, by_column(scale, matrix))
        assert relative.inverse is not None
        matrix, inverse = relative.matrix, relative.inverse
    if out <= width:  # the square root of W Wᵀ serves as well as W, with a shorter ξ
        values, vectors = torch.linalg.eigh(matrix.double() @ matrix.mT.double())
        root = (vectors * values.clamp(min=0).sqrt()[:, None]) @ vectors.mT
        root = root.to(matrix.dtype)
    else:
        root = matrix
    columns = root.shape[2]

    def lift(xi: Tensor) -> Tensor:
        flat = torch.empty(index.numel(), dtype=xi.dtype, device=xi.device)
        flat[index] = (root @ xi.view(g, columns, width) * inverse).flatten()
        return flat

    def drop(v: Tensor) -> Tensor:
        return (root.mT @ (v[index].view(g, out, width) * inverse)).flatten()

    return _Row(name, g * columns * width, lift, drop)


def _rho(surface: Surface, layer: str) -> _Row:
    name, matrix, index = _matrix(surface, layer)
    neurons = surface.matrices[layer].neurons
    g = len(matrix)
    blocks = matrix.unflatten(2, (-1, neurons))  # neuron j owns the columns j, j + neurons, ...

    def lift(xi: Tensor) -> Tensor:
        flat = torch.empty(index.numel(), dtype=xi.dtype, device=xi.device)
        flat[index] = (blocks * xi.view(g, 1, 1, neurons)).flatten()
        return flat

    def drop(v: Tensor) -> Tensor:
        return (blocks * v[index].view(blocks.shape)).sum(dim=(1, 2)).flatten()

    return _Row(name, g * neurons, lift, drop)
