"""What stands first and last in a network: embeddings and readouts."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Positions(nn.Module):
    """Tokens and positions are embedded and added."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(5, 4), nn.Embedding(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))


class Leading(nn.Module):
    """Class 0 is ahead of the others, so that the network is confident of it."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: Tensor) -> Tensor:
        ahead = torch.zeros_like(x)
        ahead[..., 0] = self.by
        return x + ahead


class MeanOverTime(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=1)


class LastStep(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, -1]


class MeanOverImage(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=(2, 3))


class Standardized(nn.Module):
    """The features are standardized before the last layer, as for a cosine classifier."""

    def forward(self, x: Tensor) -> Tensor:
        return x / (x.square().mean(dim=-1, keepdim=True) + 0.1).sqrt()


class SumOfHeads(nn.Module):
    """The outputs are the sum of two layers."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, classes), nn.Linear(4, classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x) + self.two(x.relu())


class TiedDecoder(nn.Module):
    """Tokens in, scores of tokens out, by one weight; `inner` stands between."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.embedding, self.inner = nn.Embedding(5, 4), inner
        self.decoder = nn.Linear(4, 5)
        self.decoder.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.inner(self.embedding(x)))


def randomize(model: nn.Module) -> nn.Module:
    """Eval mode; normalizations get statistics and factors that do something."""
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_()
        if name.endswith("running_var"):
            buffer.uniform_(0.5, 2.0)
    for module in model.modules():
        if "Norm" in type(module).__name__:
            for parameter in module.parameters(recurse=False):
                parameter.data.normal_()
    return model.eval()
