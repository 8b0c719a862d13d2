"""A small encoder for the classification of texts, in the manner of a downsized RoBERTa."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...ground.errors import SpiritlevelError, brief
from .activations import activation_type
from .sizes import check_divides, check_sizes
from .transformer_blocks import TransformerBlock, position_numbers, start


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
    if not isinstance(padding, int) or padding not in range(vocabulary):
        raise SpiritlevelError(
            "The 'padding' argument of text_transformer must be a token, 0 to "
            f"{vocabulary - 1}. Got {brief(padding)}. Leave it out for the default."
        )
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
