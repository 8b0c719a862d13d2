"""Parts of both transformers, for images and for texts: pre-LN blocks and initial weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Multi-head attention; query, key and value are separate linear layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        # A bias would shift all scores of a query alike, which the softmax does not see.
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix the positions of x (N, T, width); mask (N, T) is True where there is something."""
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (N, heads, T, width/heads)
            for layer in (self.query, self.key, self.value)
        )
        seen = None if mask is None else mask[:, None, None, :]
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(-2))
        return out


class TransformerBlock(nn.Module):
    """Attention and a two-layer perceptron, each after LayerNorm and beside a shortcut."""

    def __init__(self, width: int, heads: int, hidden: int, activation: type[nn.Module]) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, hidden)
        self.activation = activation()
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """The same shape, (N, T, width)."""
        x = x + self.attention(self.norm1(x), mask)
        out: Tensor = x + self.fc2(self.activation(self.fc1(self.norm2(x))))
        return out


def position_numbers(x: Tensor) -> Tensor:
    """0, 1, … along the second dimension of x, for every sample of the first.

    Every sample looks its positions up itself, so that gradients for single samples can be told
    apart.
    """
    return torch.arange(x.shape[1], device=x.device).expand(x.shape[:2])


def start(network: nn.Module) -> None:
    """Weights as Dosovitskiy et al. (2021) start them: Xavier, no bias, embeddings of 0.02."""
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
