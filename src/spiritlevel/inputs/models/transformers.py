"""Two small transformers, for images and for texts, of the same pre-LN blocks.

The one for images is a vision transformer (Dosovitskiy et al. 2021). The one for texts is an
encoder that classifies them, in the manner of a downsized RoBERTa.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...ground.errors import SpiritlevelError
from ...ground.need import need, one_of, whole
from .parts import activation_type, check_divides, check_sizes


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
        """What the block makes of x, in the same shape (N, T, width)."""
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


def vit_small(
    channels: int = 3,
    *,
    classes: int = 10,
    size: int = 32,
    patch: int = 4,
    width: int = 192,
    depth: int = 6,
    heads: int = 3,
    pooling: str = "token",
    activation: str = "gelu",
) -> VisionTransformer:
    """Patches of `patch`×`patch` pixels, `depth` pre-LN blocks, a class token, a linear head.

    `size` is the height and width of the images. `pooling="mean"` has no class token and averages
    over the patches instead. 2,692,426 parameters at the defaults.
    """
    sizes = {"channels": channels, "classes": classes, "size": size, "patch": patch}
    check_sizes("vit_small", **sizes, width=width, depth=depth, heads=heads)
    check_divides("vit_small", "patch", "size", patch=patch, size=size)
    check_divides("vit_small", "heads", "width", heads=heads, width=width)
    fits, then = one_of(("token", "mean")), "'token' adds a class token and classifies by it alone."
    need("pooling", pooling, fits, "'token' or 'mean'", then, of="vit_small")
    blocks = [
        TransformerBlock(width, heads, 4 * width, activation_type("vit_small", activation))
        for _ in range(depth)
    ]
    return VisionTransformer(
        nn.Conv2d(channels, width, patch, stride=patch),
        blocks,
        size=size,
        token=pooling == "token",
        classes=classes,
    )


class VisionTransformer(nn.Module):
    """Patches become positions; the class token, if there is one, is the first of them."""

    def __init__(
        self,
        patches: nn.Conv2d,
        blocks: list[TransformerBlock],
        *,
        size: int,
        token: bool,
        classes: int,
    ) -> None:
        super().__init__()
        width, num_patches = patches.out_channels, (size // patches.stride[0]) ** 2
        self.size = size
        self.patches = patches
        self.token = nn.Embedding(1, width) if token else None
        # Embeddings, not bare parameters: as layers they are measured as fast as any other.
        self.positions = nn.Embedding(num_patches + token, width)
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)
        start(self)

    def forward(self, images: Tensor) -> Tensor:
        """Scores of the classes, (N, classes)."""
        if images.dim() != 4 or images.shape[-2:] != (self.size, self.size):
            raise SpiritlevelError(
                f"This vit_small takes images of shape (N, channels, {self.size}, {self.size}). "
                f"Got {tuple(images.shape)}. Build it with size= the height of your images."
            )
        x = self.patches(images).flatten(2).transpose(1, 2)  # (N, T, width)
        if self.token is not None:
            x = torch.cat([self.token(position_numbers(x[:, :1])), x], dim=1)
        x = x + self.positions(position_numbers(x))
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        scores: Tensor = self.head(x.mean(dim=1) if self.token is None else x[:, 0])
        return scores


def text_transformer(
    vocabulary: int = 1000,
    *,
    classes: int = 2,
    length: int = 128,
    width: int = 64,
    depth: int = 2,
    heads: int = 4,
    activation: str = "relu",
    padding: int = 0,
) -> TextTransformer:
    """Token and position embeddings, `depth` pre-LN blocks, the mean over the tokens, a head.

    `length` is the most tokens a text may have; `padding` is the token that fills up shorter ones.
    172,290 parameters at the defaults.

    "Sharpness can be manipulated …" trains a RoBERTa of 21 million parameters with ReLU and does
    not say its sizes; vocabulary=50265, length=512, width=256, depth=10 has 20.9 million. RoBERTa
    itself normalizes after the sums, and classifies by its first token.
    """
    sizes = {"vocabulary": vocabulary, "classes": classes, "length": length}
    check_sizes("text_transformer", **sizes, width=width, depth=depth, heads=heads)
    check_divides("text_transformer", "heads", "width", heads=heads, width=width)
    is_token, wanted = whole(least=0, most=vocabulary - 1), f"a token, 0 to {vocabulary - 1}"
    then = "Leave it out for the default."
    need("padding", padding, is_token, wanted, then, of="text_transformer")
    activate = activation_type("text_transformer", activation)
    blocks = [TransformerBlock(width, heads, 4 * width, activate) for _ in range(depth)]
    tokens = nn.Embedding(vocabulary, width)
    return TextTransformer(tokens, blocks, length=length, padding=padding, classes=classes)


class TextTransformer(nn.Module):
    """Called with token ids, or by keyword as Hugging Face's models are."""

    def __init__(
        self,
        tokens: nn.Embedding,
        blocks: list[TransformerBlock],
        *,
        length: int,
        padding: int,
        classes: int,
    ) -> None:
        super().__init__()
        self.length, self.padding = length, padding
        self.tokens = tokens
        self.positions = nn.Embedding(length, tokens.embedding_dim)
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(tokens.embedding_dim)
        self.head = nn.Linear(tokens.embedding_dim, classes)
        start(self)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Scores of the classes, (N, classes), from token ids (N, T).

        `attention_mask` is 1 where there is a token; without it, everything but padding is one.
        """
        self._check(input_ids)
        given = input_ids != self.padding if attention_mask is None else attention_mask != 0
        mask = given | ~given.any(dim=1, keepdim=True)  # of an empty text its padding is read
        x = self.tokens(input_ids) + self.positions(position_numbers(input_ids))
        for block in self.blocks:
            x = block(x, mask)
        weights = mask.to(x.dtype).unsqueeze(-1)
        scores: Tensor = self.head((self.norm(x) * weights).sum(dim=1) / weights.sum(dim=1))
        return scores

    def _check(self, input_ids: Tensor) -> None:
        whole = not (input_ids.is_floating_point() or input_ids.dtype == torch.bool)
        if input_ids.dim() != 2 or not whole or not 1 <= input_ids.shape[1] <= self.length:
            raise SpiritlevelError(
                "This text_transformer takes whole numbers of shape (N, T), the token ids, with T "
                f"from 1 to {self.length}. Got {input_ids.dtype} of shape "
                f"{tuple(input_ids.shape)}. Build it with length= your longest text."
            )
