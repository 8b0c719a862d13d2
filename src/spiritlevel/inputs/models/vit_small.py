"""A small vision transformer (Dosovitskiy et al. 2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...ground.errors import SpiritlevelError, brief
from .activations import activation_type
from .sizes import check_divides, check_sizes
from .transformer_blocks import TransformerBlock, position_numbers, start


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
    if pooling not in ("token", "mean"):
        raise SpiritlevelError(
            f"The 'pooling' argument of vit_small must be 'token' or 'mean'. Got {brief(pooling)}. "
            "'token' adds a class token and classifies by it alone."
        )
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
