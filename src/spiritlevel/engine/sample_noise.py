"""The noise of sample probes: a random change of every parameter, another one for each sample."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from ..math.signs import random_signs
from ..model.layers.output_changes import ColumnNoise, RankOneNoise
from ..model.surface import Surface
from .sweep.sums import RowKind

_STREAM = 1 << 20  # of random numbers, different from those of all other probes


class SampleNoise:
    """Noise ξ for some parameters, such that ⟨ξ, H ξ⟩ has the trace, κ or Σ ρ(j) for its mean."""

    def __init__(self, surface: Surface, kind: RowKind, names: Iterable[str], seed: int) -> None:
        """`kind` is "trace", "kappa" or "rho"."""
        self.surface, self.kind, self.names, self.seed = surface, kind, list(names), seed
        self._matrices = {matrix.name: matrix for matrix in surface.matrices.values()}

    def of(self, samples: Tensor, stream: int) -> dict[str, RankOneNoise | ColumnNoise]:
        """ξ of every parameter for every sample: r ⊗ q for matrices, full for all others.

        For ρ each column of a matrix has a sign.

        All signs are drawn at once: a GPU would wait for Python between hundreds of draws.
        """
        sizes = {name: self.signs_of(name) for name in self.names}
        count = sum(sum(pair) for pair in sizes.values())
        signs = random_signs(self.seed, _STREAM + stream, samples, count, self.surface.dtype)
        noise: dict[str, RankOneNoise | ColumnNoise] = {}
        start = 0
        for name, (first, second) in sizes.items():
            along, across = signs[:, start : start + first + second].split([first, second], dim=1)
            start += first + second
            if self.kind == "rho":
                matrix = self._matrices[name]
                on_rows = not matrix.rule.rows_first
                noise[name] = ColumnNoise(along, matrix.parameter.detach(), on_rows)
            elif self.kind == "kappa":
                noise[name] = self._relative(name, along, across)
            else:
                noise[name] = RankOneNoise(along, across if second else None)
        return noise

    def signs_of(self, name: str) -> tuple[int, int]:
        """How many signs a parameter takes, of two kinds: r and q, or p and q for κ."""
        if self.kind == "rho":
            return self._matrix(name).shape[0] * self._matrices[name].neurons, 0
        if self.kind == "kappa":
            matrix = self._matrix(name)
            return matrix.shape[0] * matrix.shape[2], matrix.shape[2]
        if name in self._matrices:
            shape = self._matrices[name].shape
            return shape[0], math.prod(shape[1:])
        return self.surface.parameters[name].numel(), 0

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
