"""Embeddings: a linear map on one-hot tokens."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor, nn

from ..math import contractions
from ..math.contractions import Form, Shape
from ._rules import AbstractCall, AbstractMatrixRule, Contracted, Layout, Wants


@dataclasses.dataclass
class EmbeddingCall(AbstractCall):
    """One use of an embedding: a linear map on one-hot tokens, so positions meet where tokens do."""

    module: nn.Embedding
    layout: Layout
    tokens: Tensor  # shape: (N, T)
    memory: Tensor  # 1 where two positions hold the same token, shape: (N, 1, T, T)
    form: Form = "gram"
    needs_input_gradient: bool = False

    def _signal(self, delta: Tensor) -> Tensor:
        split = self.layout.split(delta)
        signal = split.reshape(len(split), -1, delta.shape[-1])  # (N, T, d)
        padding = self.module.padding_idx
        if padding is None:
            return signal
        return signal * (self.tokens != padding)[:, :, None]  # torch gives that row no gradient

    def gradients(self, delta: Tensor) -> dict[str, Tensor]:
        """Σ over the positions of each token."""
        signal = self._signal(delta)
        G = signal.new_zeros(len(signal), *self.module.weight.shape)
        index = self.tokens[:, :, None].expand_as(signal)
        return {"weight": G.scatter_add(1, index, signal)}

    def contract(self, delta: Tensor, weight: Tensor, gram: Tensor | None, rho: bool) -> Contracted:
        """As for any matrix; the neurons are the tokens."""
        signal = self._signal(delta)
        turned = signal.mT[:, None]  # (N, 1, d, T)
        kappa = None if gram is None else contractions.kappa(turned, self.memory, "gram", gram)
        neurons = None
        if rho:
            terms = (signal * self.module.weight.detach()[self.tokens]).sum(dim=2)
            neurons = terms.new_zeros(len(terms), self.module.num_embeddings)
            neurons = neurons.scatter_add(1, self.tokens, terms)
        return Contracted(contractions.trace(turned, self.memory, "gram"), kappa, neurons)


class EmbeddingRule(AbstractMatrixRule):
    """A lookup table as the linear map from one-hot tokens to vectors."""

    def leading(self, module: nn.Module, out: torch.Size) -> int:
        """All but the vector."""
        return len(out) - 1

    def begin(
        self, module: nn.Module, a: Tensor, out: torch.Size, layout: Layout, wants: Wants
    ) -> EmbeddingCall:
        """Find once which positions share a token."""
        assert isinstance(module, nn.Embedding)
        split = layout.split(a)
        tokens = split.reshape(len(split), -1)
        same = (tokens[:, None, :, None] == tokens[:, None, None, :]).to(module.weight.dtype)
        return EmbeddingCall(module, layout, tokens, same)

    def matrix(self, module: nn.Module, weight: Tensor) -> Tensor:
        """(V, d) to (1, d, V)."""
        return weight.mT.unsqueeze(-3)

    def neurons(self, module: nn.Module) -> int:
        """One a token."""
        return int(module.num_embeddings)  # type: ignore[arg-type]

    def shape(self, module: nn.Module, a: Tensor, out: torch.Size, layout: Layout) -> Shape:
        """T counts the tokens of a sample."""
        num_samples = out[layout.dim] // layout.repeats
        return Shape(1, out[-1], self.neurons(module), math.prod(out[:-1]) // num_samples)
