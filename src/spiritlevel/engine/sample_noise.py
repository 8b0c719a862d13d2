"""The noise of sample probes: a random change of every parameter, another one for each sample."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

import torch
from torch import Tensor

from ..math.signs import PackedSigns, random_signs
from ..model.layers.embedding import EmbeddingRule
from ..model.layers.output_changes import ColumnNoise, Noise, RankOneNoise, SignedNoise
from ..model.layers.patches import ConvRule, LinearRule, TransposedLinearRule
from ..model.surface import Surface
from ..model.weight_matrices import WeightMatrix
from .sweep.sums import RowKind

_STREAM = 1 << 20  # of random numbers, different from those of all other probes
_SHARED = 1 << 32  # and of the signs that all samples share


class SampleNoise:
    """Noise ξ for some parameters, such that ⟨ξ, H ξ⟩ has the trace, κ or Σ ρ(j) for its mean."""

    def __init__(self, surface: Surface, kind: RowKind, names: Iterable[str], seed: int) -> None:
        """`kind` is "trace", "kappa" or "rho"."""
        self.surface, self.kind, self.names, self.seed = surface, kind, list(names), seed
        self._matrices = {matrix.name: matrix for matrix in surface.matrices.values()}
        self._factors: dict[str, Tensor] = {}

    @functools.cached_property
    def _sharing(self) -> dict[str, torch.Size]:
        """The parameters with signs V that all samples share, and the shape of V."""
        return {name: self._shape_of_shared(name) for name in self.names if self._shares(name)}

    @property
    def of_rank_one(self) -> list[str]:
        """The parameters with noise r ⊗ q."""
        if self.kind == "rho":
            return []
        return [name for name in self.names if name in self._matrices and name not in self._sharing]

    @functools.cached_property
    def _packed(self) -> PackedSigns:
        sizes = [shape.numel() for shape in self._sharing.values()]
        return PackedSigns(sizes, self.surface.dtype, self.surface.device)

    def of(self, samples: Tensor, draws: Tensor, number: int) -> dict[str, Noise]:
        """ξ of every parameter for every sample, whose draws have these numbers of its own.

        `number` is that of V. Several draws may have the same: whatever V is, the signs of the
        samples and draws alone make their values uncorrelated, with the right mean.
        Of a matrix it is diag(r) V diag(q), with signs r and q of the sample and signs V that all
        samples share, or r ⊗ q; of all others it is full. For ρ each column of a matrix has a sign.
        For κ its columns have the covariance W Wᵀ.

        All signs are drawn at once: a GPU would wait for Python between hundreds of draws.
        """
        sizes = {name: self.signs_of(name) for name in self.names}
        count = sum(sum(pair) for pair in sizes.values())
        signs = random_signs(self.seed, _STREAM + draws, samples, count, self.surface.dtype)
        shared = self._packed.drawn(self.seed, _SHARED, number) if self._sharing else signs
        noise: dict[str, Noise] = {}
        start = 0
        for name, (first, second) in sizes.items():
            along, across = signs[:, start : start + first + second].split([first, second], dim=1)
            start += first + second
            if self.kind == "rho":
                matrix = self._matrices[name]
                on_rows = not matrix.rule.rows_first
                noise[name] = ColumnNoise(along, matrix.parameter.detach(), on_rows)
            elif name in self._sharing:
                noise[name] = self._signed(name, along, across, shared)
            elif self.kind == "kappa":
                noise[name] = self._relative(name, along, across)
            else:
                noise[name] = RankOneNoise(along, across if second else None)
        return noise

    def signs_of(self, name: str) -> tuple[int, int]:
        """How many signs a parameter takes, of two kinds: r and q, or p and q for κ."""
        if self.kind == "rho":
            return self._matrix(name).shape[0] * self._matrices[name].neurons, 0
        if self.kind == "kappa" and not self._is_table(name):
            matrix = self._matrix(name)
            return matrix.shape[0] * matrix.shape[2], matrix.shape[2]
        if name in self._matrices:
            shape = self._matrices[name].shape
            return shape[0], math.prod(shape[1:])
        return self.surface.parameters[name].numel(), 0

    def _shares(self, name: str) -> bool:
        """Whether ξ may be diag(r) V diag(q), which varies less than r ⊗ q.

        Only in a plain linear map do the values of different samples stay uncorrelated.
        """
        matrix = self._matrices.get(name)
        if matrix is None or self.kind == "rho":
            return False
        if self.kind == "trace" and _has_separate_windows(matrix):
            return True
        return type(matrix.rule) in (LinearRule, TransposedLinearRule, EmbeddingRule)

    def _is_table(self, name: str) -> bool:
        return name in self._matrices and type(self._matrices[name].rule) is EmbeddingRule

    def _shape_of_shared(self, name: str) -> torch.Size:
        if self.kind == "kappa" and not self._is_table(name):
            return torch.Size([self._matrix(name).shape[2]] * 2)
        return self.surface.parameters[name].shape

    def _signed(self, name: str, along: Tensor, across: Tensor, drawn: Tensor) -> SignedNoise:
        number = list(self._sharing).index(name)
        shared = functools.partial(self._packed.of, drawn, number, self._sharing[name])
        if self.kind == "trace":
            return SignedNoise(along, across, shared)
        if self._is_table(name):
            return SignedNoise(along, across, shared, factor=self._factor(name))
        return SignedNoise(along, across, shared, self._matrices[name].parameter.detach())

    def _factor(self, name: str) -> Tensor:
        """L with L Lᵀ = W Wᵀ: a table has far fewer outputs than inputs, so ξ in the shape of W."""
        if name not in self._factors:
            (matrix,) = self._matrix(name)  # (out, in)
            self._factors[name] = square_root(matrix.double() @ matrix.double().mT).to(matrix)
        return self._factors[name]

    def _matrix(self, name: str) -> Tensor:
        matrix = self._matrices[name]
        return matrix.of(matrix.parameter.detach())

    def _relative(self, name: str, p: Tensor, q: Tensor) -> RankOneNoise:
        """(W p) ⊗ q: its columns have the covariance W Wᵀ, group by group."""
        matrix = self._matrix(name)  # (groups, out, in)
        p = p.unflatten(1, (matrix.shape[0], -1))
        lifted = torch.einsum("goi,ngi->ngo", matrix, p).flatten(1)
        return (
            RankOneNoise(lifted, q)
            if self._matrices[name].rule.rows_first
            else RankOneNoise(q, lifted)
        )


def square_root(gram: Tensor) -> Tensor:
    """A matrix L with L Lᵀ = `gram`, positive semidefinite.

    >>> L = square_root(torch.tensor([[4.0, 2.0], [2.0, 1.0]]).double())     # of rank one
    >>> (L @ L.mT).round(decimals=6).tolist()
    [[4.0, 2.0], [2.0, 1.0]]
    """
    lower, failed = torch.linalg.cholesky_ex(gram)
    if not failed:
        return lower
    values, vectors = torch.linalg.eigh(gram)
    return vectors * values.clamp_min(0).sqrt()


def _has_separate_windows(matrix: WeightMatrix) -> bool:
    """Whether it is a convolution whose windows do not overlap: a linear map on each of them."""
    module = matrix.module
    if type(matrix.rule) is not ConvRule or module.groups != 1:
        return False
    sizes = zip(module.kernel_size, module.stride, module.dilation, strict=True)
    return all(size == 1 or (size <= stride and gap == 1) for size, stride, gap in sizes)
