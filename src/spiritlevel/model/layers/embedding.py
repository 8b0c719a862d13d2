"""Embeddings, and sums of embeddings in bags: a linear map on one-hot tokens."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from ...math import contractions
from ...math.contractions import Shape
from .layer_matrix import Contracted, LayerMatrix, over_columns
from .layer_rule import AbstractMatrixGradients, AbstractMatrixRule, ContractionRequest
from .layout import Layout


@dataclasses.dataclass
class EmbeddingGradients(AbstractMatrixGradients):
    """One use of an embedding, whose positions interact where their tokens are equal."""

    module: Any  # an nn.Embedding, or a lookup that the graph shows
    layout: Layout
    tokens: Tensor  # shape: (N, T)
    memory: Tensor  # 1 where two positions hold the same token, shape: (N, 1, T, T)
    memories: dict[str, Tensor]  # `memory` for one-hot tokens divided by V, by kind of κ

    @property
    def needs_input_gradient(self) -> bool:
        """False: tokens have no gradient, so ρ is computed from the gradient at the output."""
        return False

    def _signal(self, delta: Tensor) -> Tensor:
        split = self.layout.split(delta)
        signal = split.reshape(len(split), -1, delta.shape[-1])  # (N, T, d)
        padding = self.module.padding_idx
        if padding is None:
            return signal
        return (
            signal * (self.tokens != padding)[:, :, None]
        )  # torch gives the padding row no gradient

    def gradients(self, delta: Tensor) -> dict[str, Tensor]:
        """The gradient of the table: for each token, the sum of δ over its positions."""
        signal = self._signal(delta)
        G = signal.new_zeros(len(signal), *self.module.weight.shape)
        index = self.tokens[:, :, None].expand_as(signal)
        return {"weight": G.scatter_add(1, index, signal)}

    def contract(
        self, deltas: list[Tensor], factors: Tensor, weight: LayerMatrix
    ) -> list[Contracted]:
        """Trace, κ and ρ as for any matrix; the input neurons are the tokens."""
        vectors = self.module.weight.detach()[self.tokens].to(self.memory.dtype)

        def column(delta: Tensor) -> tuple[Tensor, ...]:
            signal = self._signal(delta)
            turned = signal.mT[:, None]  # (N, 1, d, T)
            values = [contractions.trace(turned, self.memory, "gram")]
            for kind, relative in weight.kappas.items():
                memory = self.memories.get(kind, self.memory)
                values.append(contractions.kappa(turned, memory, "gram", relative.gram))
            if weight.rho:
                terms = (signal * vectors).sum(dim=2)
                neurons = terms.new_zeros(len(terms), self.module.num_embeddings)
                values.append(neurons.scatter_add(1, self.tokens, terms))
            return tuple(values)

        trace, *rest = over_columns(column, deltas)
        neurons = rest.pop() if weight.rho else None
        return [Contracted(factors, trace, dict(zip(weight.kappas, rest, strict=True)), neurons)]


class EmbeddingRule(AbstractMatrixRule):
    """A lookup table as the linear map from one-hot tokens to vectors."""

    rows_first = False

    def leading(self, module: Any, out: torch.Size) -> int:
        """All dimensions but the last, which holds the vector."""
        return len(out) - 1

    def prepare(
        self, module: Any, a: Tensor, out: torch.Size, layout: Layout, request: ContractionRequest
    ) -> EmbeddingGradients:
        """Find out which positions share a token, once for all factor columns."""
        split = layout.split(a)
        tokens = split.reshape(len(split), -1)
        same = tokens[:, None, :, None] == tokens[:, None, None, :]
        # in half precision the signals that meet this matrix are widened to float32
        same = same.to(torch.promote_types(module.weight.dtype, torch.float32))
        memories = {
            kind: same * inverse.flatten()[tokens].square()[:, None, :, None]
            for kind, inverse in request.inverses.items()
        }
        return EmbeddingGradients(module, layout, tokens, same, memories)

    def matrix(self, module: Any, weight: Tensor) -> Tensor:
        """(V, d) becomes (1, d, V)."""
        return weight.mT.unsqueeze(-3)

    def neurons(self, module: Any) -> int:
        """One per token of the table."""
        return module.num_embeddings

    def squared_inputs(self, module: Any, a: Tensor, out: torch.Size, layout: Layout) -> Tensor:
        """1 per token; the padding token's row is not trained and does not count."""
        split = layout.split(a)
        tokens = split.reshape(len(split), -1)
        padding = module.padding_idx
        counted = torch.ones_like(tokens) if padding is None else tokens != padding
        return counted.double().sum(dim=1)

    def shape(self, module: Any, a: Tensor, out: torch.Size, layout: Layout) -> Shape:
        """The sizes of the matrix; its positions are the tokens of a sample."""
        positions = math.prod(out[:-1]) // layout.num_samples
        return Shape(1, out[-1], self.neurons(module), positions)


@dataclasses.dataclass
class BagGradients(EmbeddingGradients):
    """One use of an embedding whose vectors are added up in bags."""

    coefficients: Tensor  # of the tokens, 0 behind the end of a bag, shape: (N, T)

    def _signal(self, delta: Tensor) -> Tensor:
        split = self.layout.split(delta)  # (N, bags, d)
        size = self.tokens.shape[1] // split.shape[1]
        signal = split.repeat_interleave(size, dim=1)
        return signal * self.coefficients[:, :, None].to(signal.dtype)


class BagRule(EmbeddingRule):
    """A lookup table whose vectors are added up; the tokens have shape (bags, largest size)."""

    def prepare(
        self, module: Any, a: Tensor, out: torch.Size, layout: Layout, request: ContractionRequest
    ) -> BagGradients:
        """As for single tokens, each with its coefficient in the sum."""
        plain = super().prepare(module, a, out, layout, request)
        coefficients = layout.split(module.coefficients).reshape(plain.tokens.shape)
        same, memories = plain.memory, plain.memories
        return BagGradients(module, layout, plain.tokens, same, memories, coefficients)

    def squared_inputs(self, module: Any, a: Tensor, out: torch.Size, layout: Layout) -> Tensor:
        """Of each bag the squared length of its sum of one-hot tokens, in which equal ones meet."""
        tokens, c = layout.split(a), layout.split(module.coefficients).double()
        same = (tokens[..., :, None] == tokens[..., None, :]).double()
        return torch.einsum("n...i,n...ij,n...j->n", c, same, c)

    def shape(self, module: Any, a: Tensor, out: torch.Size, layout: Layout) -> Shape:
        """The sizes of the matrix; its positions are the tokens of a sample."""
        return Shape(1, out[-1], self.neurons(module), a.numel() // layout.num_samples)
