"""Networks with known moves, each with a few samples and the number of groups of every move."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiritlevel.inputs.models import resnet18


class ChannelsLast(nn.Module):
    """Functional activations, and a flatten that puts the channels of a position side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(2, 3, 3, padding=1), nn.Linear(3 * 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = F.max_pool2d(F.relu(self.conv(x)), 2)
        return self.fc(h.permute(0, 2, 3, 1).flatten(1))


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(3, 5), nn.Linear(5, 5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu_(self.a(x)).mul_(2)
        h += F.relu_(self.b(h))
        return self.head(h)


class TwoReaders(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared, self.left = nn.Linear(3, 6), nn.Linear(6, 4)
        self.right = nn.Linear(6, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.shared(x).relu()
        return self.left(h) * self.right(h)


class Concatenated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Conv1d(2, 3, 2), nn.Conv1d(2, 4, 2), nn.Linear(7 * 5, 3)

    def forward(self, x: Tensor) -> Tensor:
        # in place: one layer must not find what the search did to the other
        return self.head(torch.cat([self.a(x).mul_(2), self.b(x).mul_(3)], 1).relu().flatten(1))


class SharedWeight(nn.Module):
    """One parameter in two layers: what suits one of them would spoil the other."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.b(self.a(x).relu()).tanh())


class WeightReadBehindTheBack(nn.Module):
    """The head's weight is used once more, by a function that no hook sees."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.middle, self.b = nn.Linear(3, 5), nn.Linear(5, 5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.middle(self.a(x).relu()).relu()
        return self.b(h) + self.a.weight.sum()


class Unrolled(nn.Module):
    """The same layer over and over: it writes the units that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.again, self.out = nn.Linear(3, 5), nn.Linear(5, 5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.into(x).relu()
        for _ in range(3):
            h = self.again(h).relu()
        return self.out(h)


class SomeUnitsDead(nn.Module):
    """Half of the hidden units never fire on any input near the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 8), nn.Linear(8, 4)
        with torch.no_grad():
            self.a.bias[:4] = -100.0

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).relu())


class Swiglu(nn.Module):
    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.into = nn.Linear(4, 12 if fused else 6)
        self.gate = nn.Identity() if fused else nn.Linear(4, 6)
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.into(x).chunk(2, -1) if self.fused else (self.gate(x), self.into(x))
        return self.out(F.silu(gate) * value)


class Block(nn.Module):
    """A pre-norm transformer block; attention with one layer a projection, or all three in one."""

    def __init__(self, width: int, *, fused: bool, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        if fused:
            self.qkv = nn.Linear(width, 3 * width)
        else:
            self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.fused = fused
        self.proj = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 10), nn.Linear(10, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        parts = self.qkv(h).chunk(3, -1) if self.fused else (self.q(h), self.k(h), self.v(h))
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            mixed = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1) @ v
        x = x + self.proj(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, *, fused: bool, tied: bool = False) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(7, 6), nn.Embedding(5, 6)
        self.blocks = nn.Sequential(Block(6, fused=fused), Block(6, fused=fused))
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, 7, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        return self.head(self.norm(self.blocks(h)))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(3, 4)
        self.block = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.into(x))[:, 0])


class Noisy(nn.Module):
    """Draws random numbers and makes nothing of them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).relu()) + 0 * torch.rand(4, dtype=x.dtype)


@dataclasses.dataclass(frozen=True)
class Net:
    """A network, the shape of a sample, and the groups of each function-preserving move."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    rescale: int = 0
    permute: int = 0
    absorb: int = 0
    fold: int = 0
    attention: int = 0
    vocabulary: int = 0

    def make(self) -> tuple[nn.Module, Tensor, Tensor]:
        """The model in eval mode, samples to search on and others to test on, in float64."""
        with torch.random.fork_rng():
            torch.manual_seed(5)
            model = self.build().double().eval()
            with torch.no_grad():
                for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                    if name.endswith(("running_var", "norm.weight", "bn1.weight")):
                        tensor.uniform_(0.5, 2)
                    elif name.endswith(("running_mean", "bias")):
                        tensor.add_(torch.randn_like(tensor) / 2)
            if self.vocabulary:
                samples = torch.randint(self.vocabulary, (12, *self.shape))
            else:
                samples = torch.randn(12, *self.shape, dtype=torch.float64)
        return model, samples[:4], samples[4:]

    @property
    def groups(self) -> dict[str, int]:
        """The number of groups by name of the move, without those it has not."""
        named = {
            "layer_rescale": self.rescale,
            "neuron_rescale": self.rescale,
            "unit_permute": self.permute,
            "batchnorm_absorb": self.absorb,
            "batchnorm_fold": self.fold,
            "attention_rescale": self.attention,
        }
        return {name: count for name, count in named.items() if count}


def _mlp(activation: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 6), activation, nn.Linear(6, 5, bias=False), activation, nn.Linear(5, 3)
    )


NETS = {
    "mlp": Net(lambda: _mlp(nn.ReLU()), (4,), rescale=2, permute=2),
    "leaky_relu": Net(lambda: _mlp(nn.LeakyReLU(0.1)), (4,), rescale=2, permute=2),
    "tanh": Net(lambda: _mlp(nn.Tanh()), (4,), permute=2),
    "one_linear_layer": Net(lambda: nn.Linear(4, 3), (4,)),
    "cnn_with_flatten": Net(
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(12, 4)
        ),
        (2, 4, 4),
        rescale=1,
        permute=1,
    ),
    "channels_last": Net(ChannelsLast, (2, 4, 4), rescale=1, permute=1),
    "in_place": Net(InPlace, (3,), rescale=1, permute=1),
    "depthwise": Net(
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 1),
            nn.ReLU(),
            nn.Conv2d(4, 4, 3, groups=4),
            nn.ReLU(),
            nn.Conv2d(4, 3, 2),
            nn.Flatten(),
        ),
        (2, 4, 4),
        rescale=2,
        permute=1,
    ),
    "grouped": Net(
        lambda: nn.Sequential(
            nn.Conv1d(2, 6, 1), nn.ReLU(), nn.Conv1d(6, 4, 2, groups=2), nn.Flatten()
        ),
        (2, 3),
        rescale=1,
    ),
    "conv_transpose": Net(
        lambda: nn.Sequential(
            nn.ConvTranspose2d(2, 3, 2, stride=2),
            nn.ReLU(),
            nn.ConvTranspose2d(3, 4, 2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4, 3),
        ),
        (2, 3, 3),
        rescale=2,
        permute=2,
    ),
    "relu_after_the_average": Net(
        lambda: nn.Sequential(
            nn.Conv2d(2, 64, 3), nn.AdaptiveAvgPool2d(1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
        ),
        (2, 8, 8),
        rescale=1,
        permute=1,
    ),
    "noisy": Net(Noisy, (3,), rescale=1, permute=1),
    "batchnorm": Net(
        lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)),
        (4,),
        permute=1,
        absorb=1,
        fold=1,
    ),
    "resnet18": Net(
        lambda: resnet18(width=8), (3, 16, 16), rescale=12, permute=12, absorb=20, fold=20
    ),
    "two_readers": Net(TwoReaders, (3,), rescale=1, permute=1),
    "concatenated": Net(Concatenated, (2, 6), rescale=2, permute=2),
    "shared_weight": Net(SharedWeight, (4,)),
    "weight_read_behind_the_back": Net(WeightReadBehindTheBack, (3,), rescale=1, permute=2),
    "unrolled": Net(Unrolled, (3,), rescale=1, permute=1),
    "dead_units": Net(SomeUnitsDead, (3,), rescale=1, permute=1),
    "gated": Net(lambda: Swiglu(fused=False), (4,), rescale=1, permute=1),
    "gated_in_one_layer": Net(lambda: Swiglu(fused=True), (4,), rescale=1),
    "transformer": Net(
        lambda: Transformer(fused=False),
        (5,),
        rescale=5,  # every norm
        permute=3,  # both hidden layers and the residual stream
        attention=2,
        vocabulary=7,
    ),
    "transformer_fused": Net(
        lambda: Transformer(fused=True), (5,), rescale=5, permute=3, attention=2, vocabulary=7
    ),
    "transformer_tied": Net(  # the last norm feeds the tied head, and so does the stream
        lambda: Transformer(fused=True, tied=True),
        (5,),
        rescale=4,
        permute=2,
        attention=2,
        vocabulary=7,
    ),
    "encoder_layer": Net(Encoder, (5, 3), rescale=2, permute=2, attention=1),
}
