"""Ways of wiring layers that a plain chain does not have: residual, tied, tokens, branches."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 3


class Residual(nn.Module):
    """BatchNorm, ReLU in place, and a sum written in place, as in torchvision's ResNets."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2, 3, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(3)
        self.conv2 = nn.Conv2d(3, 3, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(3)
        self.shortcut = nn.Conv2d(2, 3, 1, bias=False)
        self.relu = nn.ReLU(inplace=True)
        self.fc = nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        out = self.relu(out)
        return self.fc(out.mean(dim=(2, 3)))


class SharedInput(nn.Module):
    """Three layers read one tensor, and a residual sum adds it again."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu_()
        return self.head((self.a(h) + self.b(h) + h).relu())


class MeanEmbedding(nn.Module):
    def __init__(self, *, padding_idx: int | None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4, padding_idx=padding_idx)
        if padding_idx is not None:
            nn.init.normal_(self.embedding.weight)  # a padding row of zeros would hide mistakes
        self.fc = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.embedding(x).relu().mean(dim=1))


class TokenLinear(nn.Module):
    """Linear layers on sequences that are stored in one of several ways."""

    def __init__(self, layout: str) -> None:
        super().__init__()
        self.layout = layout
        self.first, self.second = nn.Linear(3, 5), nn.Linear(5, 4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        n, t, _ = x.shape
        if self.layout == "reshaped":
            x = x.reshape(n * t, -1)
        elif self.layout == "tokens_major":
            x = x.transpose(0, 1).reshape(t * n, -1)
        elif self.layout == "sequence_first":
            x = x.transpose(0, 1)
        x = self.second(self.first(x).relu()).relu()
        if self.layout == "reshaped":
            x = x.reshape(n, t, -1)
        elif self.layout == "tokens_major":
            x = x.reshape(t, n, -1).transpose(0, 1)
        elif self.layout == "sequence_first":
            x = x.transpose(0, 1)
        weights = torch.arange(1, t + 1, dtype=x.dtype)  # positions must not be interchangeable
        return self.head((x * weights[:, None]).mean(dim=1))


class MiddlePosition(nn.Module):
    """Sequence first, three positions, of which only the middle one reaches the outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(3, 5), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.first(x.transpose(0, 1))[1].relu())


class FoldedImages(nn.Module):
    """Several images a sample, folded into the batch of a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2)
        self.fc = nn.Linear(2, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        n, views = x.shape[:2]
        h = self.norm(self.conv(x.reshape(n * views, 1, 3, 3))).relu().mean(dim=(2, 3))
        return self.fc(h.reshape(n, views, -1).amax(dim=1))


class BareParameters(nn.Module):
    """A class token, positions and a scale, none of them in a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 4))
        self.position = nn.Parameter(torch.randn(1, 4, 4))
        self.scale = nn.Parameter(torch.tensor(1.3))
        self.mix = nn.Linear(16, 6)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat([self.token.expand(len(x), 1, 4), x], dim=1) + self.position
        return self.head(self.mix((self.scale * h).relu().flatten(1)).relu())


class Tied(nn.Module):
    """One weight used twice, in one of several ways."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.stem = nn.Linear(3, 4)
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        if how == "one_weight_in_two_modules":
            self.b.weight = self.a.weight
        else:
            del self.b
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x).relu()
        if self.how == "series":
            return self.head(self.a(self.a(h).relu()).relu())
        if self.how == "parallel":
            return self.head(self.a(h).relu() + 0.5 * self.a(h.flip(1)).relu())
        return self.head(self.a(h).relu() - self.b(h.roll(1, 1)).relu())


class TiedConv(nn.Module):
    """A convolution that looks at two halves of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 2, groups=2, stride=2)
        self.fc = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.conv(x[..., :4]).relu(), self.conv(x[..., 4:]).relu()
        return self.fc((left - 2 * right).mean(dim=(2, 3)))


class TiedDecoder(nn.Module):
    """A language model in small: scores are products with the embedding table itself."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 3)
        self.mix = nn.Linear(3, 3)
        self.decoder = nn.Linear(3, 4, bias=False)
        self.decoder.weight = self.embedding.weight
        nn.init.constant_(self.mix.bias, 1.0)  # keeps its units alive

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.mix(self.embedding(x).mean(dim=1)).relu())


class BorrowedWeight(nn.Module):
    """One layer's weight is also used by a function, past its module."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.a(x).relu() + F.linear(x.flip(1), self.a.weight.T).relu())


class PartlyFrozen(nn.Module):
    """Frozen weights, a frozen bias, a module that is never called, one cut off from the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen_weight, self.frozen_bias = nn.Linear(3, 4), nn.Linear(4, 4)
        self.frozen = nn.Linear(4, 4)
        self.never_called = nn.Linear(3, 2)
        self.detached = nn.Linear(3, 4)
        self.unused = nn.Parameter(torch.randn(3))
        self.head = nn.Linear(4, CLASSES)
        self.frozen_weight.weight.requires_grad_(False)
        self.frozen_bias.bias.requires_grad_(False)
        self.frozen.requires_grad_(False)
        self.detached.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.frozen_bias(self.frozen_weight(x).relu()).relu()
        return self.head(self.frozen(h).relu() + self.detached(x).detach())


class Branching(nn.Module):
    """Python looks at the numbers of each sample, which vmap cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = nn.Linear(3, 4), nn.Linear(3, 4)
        self.scale = nn.Parameter(torch.randn(4))
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        rows = [self.high(row) if float(row[0]) > 0 else self.low(row) * self.scale for row in x]
        return self.head(torch.stack(rows).relu())


class TwoInputs(nn.Module):
    """One encoder for two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(3, 4)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.head(torch.cat([self.encoder(left), self.encoder(right)], dim=1).relu())


class Gated(nn.Module):
    """A product of two branches: linear along either's weights, though not along both at once."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.gate = nn.Linear(3, 4), nn.Linear(3, 4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.value(x).relu() * self.gate(x).clamp(0, 1))


class ByKeyword(nn.Module):
    """A layer called with its input as a keyword, which forward hooks do not see."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(3, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.first(input=x).relu())


class ScaledLinear(nn.Linear):
    """A linear layer that does something else."""

    def forward(self, x: Tensor) -> Tensor:
        return 2.0 * super().forward(x.flip(1)) + x.sum(dim=1, keepdim=True)


class Attention(nn.Module):
    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.attention = nn.MultiheadAttention(4, 2, batch_first=batch_first)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = x if self.batch_first else x.transpose(0, 1)
        h, _ = self.attention(h, h, h, need_weights=False)
        return self.head(h.mean(dim=1 if self.batch_first else 0))


class Encoder(nn.Module):
    def __init__(self, *, batch_first: bool, norm_first: bool) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.block = nn.TransformerEncoderLayer(
            4, 2, 5, batch_first=batch_first, norm_first=norm_first
        )
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.block(x if self.batch_first else x.transpose(0, 1))
        return self.head(h[:, 0] if self.batch_first else h[0])


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(3, 4, batch_first=True)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x)[0][:, -1])


class Bilinear(nn.Module):
    """A layer kind without a rule."""

    def __init__(self) -> None:
        super().__init__()
        self.bilinear = nn.Bilinear(3, 2, 4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.bilinear(x[:, :3], x[:, 3:]).relu())


class ConvHead(nn.Module):
    """A last convolution under global average pooling."""

    def __init__(self, conv):
        super().__init__()
        self.conv = conv

    def forward(self, x):
        return self.conv(x).flatten(2).mean(dim=2)
