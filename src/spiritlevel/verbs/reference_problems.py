"""Tiny networks with data: small enough for dense Hessians, some with answers known by hand.

Everything is drawn from a seed of its own, so a problem is the same wherever it is made. The data
is cut into unequal batches on purpose.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

BATCHES = (4, 1, 3)  # samples in each batch


@dataclasses.dataclass(frozen=True)
class Problem:
    """A model in eval mode, its data and its loss.

    `pairs` names (producer, consumer) modules: what the first puts out reaches the second through
    a ReLU alone, so `symmetries.rescale_layers` and its like keep the function on them.
    """

    name: str
    model: nn.Module
    data: list[tuple[Tensor, Tensor]]
    loss: str
    pairs: tuple[tuple[str, str], ...] = ()

    def inputs(self) -> Tensor:
        """The inputs of all batches."""
        return torch.cat([x for x, _ in self.data])

    def targets(self) -> Tensor:
        """The targets of all batches."""
        return torch.cat([y for _, y in self.data])


def linear_regression(dtype: torch.dtype = torch.float64) -> Problem:
    """Squared error of a linear map of 3 features to 2 outputs.

    The loss is mean over samples and outputs, so its Hessian in the weights is I ⊗ mean x xᵀ.

    >>> problem = linear_regression()
    >>> len(problem.inputs()), problem.model(problem.inputs()).shape[1]
    (8, 2)
    """
    model = nn.Linear(3, 2)
    return _problem("linear_regression", model, (3,), "mse", dtype)


def softmax_regression(dtype: torch.dtype = torch.float64) -> Problem:
    """Cross-entropy of a linear map of 4 features to 3 classes: the whole network is its head."""
    model = nn.Linear(4, 3)
    return _problem("softmax_regression", model, (4,), "cross_entropy", dtype)


def relu_mlp(dtype: torch.dtype = torch.float64) -> Problem:
    """Cross-entropy of 4 features through two hidden ReLU layers to 3 classes."""
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    pairs = (("0", "2"), ("2", "4"))
    return _problem("relu_mlp", model, (4,), "cross_entropy", dtype, pairs)


def relu_convnet(dtype: torch.dtype = torch.float64) -> Problem:
    """Cross-entropy of a 4×4 image through two convolutions and a linear layer to 3 classes."""
    model = nn.Sequential(
        nn.Conv2d(1, 3, 2),
        nn.ReLU(),
        nn.Conv2d(3, 4, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16, 3),
    )
    pairs = (("0", "2"), ("2", "5"))
    return _problem("relu_convnet", model, (1, 4, 4), "cross_entropy", dtype, pairs)


def batchnorm_convnet(dtype: torch.dtype = torch.float64) -> Problem:
    """As `relu_convnet`, with BatchNorm in eval mode after each convolution."""
    model = nn.Sequential(
        nn.Conv2d(1, 3, 2),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Conv2d(3, 4, 2),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16, 3),
    )
    return _problem("batchnorm_convnet", model, (1, 4, 4), "cross_entropy", dtype)


class _ResidualAttention(nn.Module):
    """Self-attention with a residual sum and LayerNorm; the mean over tokens is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, num_heads=2, batch_first=True)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        mixed, _ = self.attention(x, x, x, need_weights=False)
        out: Tensor = self.head(self.norm(x + mixed).mean(dim=1))
        return out


def attention(dtype: torch.dtype = torch.float64) -> Problem:
    """Cross-entropy of 5 tokens with 4 features through one block of attention to 3 classes."""
    return _problem("attention", _ResidualAttention(), (5, 4), "cross_entropy", dtype)


ALL: dict[str, Callable[[torch.dtype], Problem]] = {
    "linear_regression": linear_regression,
    "softmax_regression": softmax_regression,
    "relu_mlp": relu_mlp,
    "relu_convnet": relu_convnet,
    "batchnorm_convnet": batchnorm_convnet,
    "attention": attention,
}


def _problem(
    name: str,
    model: nn.Module,
    shape: Sequence[int],
    loss: str,
    dtype: torch.dtype,
    pairs: tuple[tuple[str, str], ...] = (),
) -> Problem:
    """Draw parameters and data in float64, then round to `dtype`."""
    generator = torch.Generator().manual_seed(0)

    def draw(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64)

    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            values = draw(*parameter.shape) / max(parameter[0].numel(), 2) ** 0.5
            parameter.copy_(values.abs() if parameter.dim() == 1 else values)  # units stay alive
        for name, buffer in model.named_buffers():  # as if BatchNorm had seen data
            if buffer.is_floating_point():
                values = draw(*buffer.shape)
                buffer.copy_(0.5 + values.abs() if name.endswith("var") else 0.1 * values)
    num_outputs = len(list(model.parameters())[-1])
    data = []
    for size in BATCHES:
        if loss == "cross_entropy":
            y = torch.randint(num_outputs, (size,), generator=generator)
        else:
            y = draw(size, num_outputs).to(dtype)
        data.append(((0.5 * draw(size, *shape)).to(dtype), y))
    return Problem(name, model.to(dtype), data, loss, pairs)
