"""Attention, written by hand and as torch offers it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class OwnAttention(nn.Module):
    """One head; queries and keys of width 2."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(4, 2), nn.Linear(4, 2), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).transpose(1, 2)
        return scores.softmax(dim=-1) @ self.value(x)


class LinearAttention(nn.Module):
    """Attention without a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(4, 2, bias=False), nn.Linear(4, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.query(x) @ (self.key(x).transpose(1, 2) @ x) / x.shape[1]


class TorchAttention(nn.Module):
    """nn.MultiheadAttention, with the samples first or second."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.attention = nn.MultiheadAttention(4, 2, batch_first=batch_first)

    def forward(self, x: Tensor) -> Tensor:
        if not self.batch_first:
            x = x.transpose(0, 1)
        out = self.attention(x, x, x, need_weights=False)[0]
        return out if self.batch_first else out.transpose(0, 1)


class FusedAttention(nn.Module):
    """F.scaled_dot_product_attention on one packed projection."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.packed, self.causal = nn.Linear(4, 12), causal

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (part[:, None] for part in self.packed(x).chunk(3, dim=-1))
        out = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return out[:, 0]


class TransformerLayer(nn.Module):
    """One encoder layer of torch, without dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 1, 3, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class TimeMixer(nn.Module):
    """Every position becomes a mean of itself and those before it."""

    def forward(self, x: Tensor) -> Tensor:
        counts = torch.arange(1, x.shape[1] + 1, device=x.device).to(x.dtype)
        return x.cumsum(dim=1) / counts[:, None]
