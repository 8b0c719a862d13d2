"""A small language model of bytes, and a text that every Python has: its standard library."""

from __future__ import annotations

import pathlib
import sysconfig

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CONTEXT = 128
BYTES = 256
WIDTH, HEADS, DEPTH = 192, 4, 4
SEQUENCES = {"train": 20_000, "test": 2_000}


def text(split: str) -> tuple[Tensor, Tensor]:
    """Bytes (N, CONTEXT) and those that follow each of them; the files of the splits differ."""
    files = sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py"))
    own = [file for i, file in enumerate(files) if (i % 10 == 0) == (split == "test")]
    content = b"".join(file.read_bytes() for file in own)
    whole = len(content) // (CONTEXT + 1)
    content = content[: whole * (CONTEXT + 1)]
    rows = torch.frombuffer(bytearray(content), dtype=torch.uint8).long().view(whole, -1)
    order = torch.randperm(whole, generator=torch.Generator().manual_seed(0))
    rows = rows[order[: SEQUENCES[split]]]
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


class Attention(nn.Module):
    """Each position reads those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH, bias=False)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """The same shape, (N, T, WIDTH)."""
        q, k, v = (
            layer(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed_heads: Tensor = self.out(mixed.transpose(1, 2).flatten(-2))
        return mixed_heads


class Block(nn.Module):
    """Attention and a two-layer perceptron, each after LayerNorm and beside a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """The same shape, (N, T, WIDTH)."""
        x = x + self.attention(self.norm1(x))
        wider: Tensor = x + self.fc2(F.gelu(self.fc1(self.norm2(x))))
        return wider


class LanguageModel(nn.Module):
    """From bytes (N, T) to scores of the next one, (N, 256, T)."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(BYTES, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(DEPTH)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, BYTES, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next byte at every position."""
        places = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)
        x = self.blocks(self.tokens(tokens) + self.positions(places))
        scores: Tensor = self.head(self.norm(x)).transpose(1, 2)
        return scores
