"""Quadratic losses with a known Hessian, and a small network, for the tests of learning rates."""

import math

import torch
from torch import Tensor, nn

from spiritlevel.testing.references import hessian_of

SIZES = (2, 3)  # of the two parameters


class Halves(nn.Module):
    """Two parameters, so that an optimizer can treat them differently; linear in both."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        first, second = (torch.randn(n, generator=generator).double() for n in SIZES)
        self.first, self.second = nn.Parameter(first), nn.Parameter(second)

    def forward(self, x: Tensor) -> Tensor:
        return (x @ torch.cat([self.first, self.second]))[:, None]

    @property
    def weights(self) -> Tensor:
        return torch.cat([self.first, self.second]).detach()


def quadratic(factor: float = 1.0, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs and targets whose squared error is ½wᵀHw, and H: full, positive definite."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(SIZES), sum(SIZES), generator=generator).double() * math.sqrt(factor)
    return x, torch.zeros(len(x), 1).double(), 2 * x.T @ x / len(x)


def make_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()


def small_network() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    return model, torch.randn(20, 4).double(), torch.randint(0, 3, (20,))


def dense_hessian(model: nn.Module, x: Tensor, y: Tensor, names: list[str]) -> Tensor:
    """Of the mean cross-entropy, by torch's own second derivatives."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    sizes = [parameters[name].numel() for name in names]

    def loss(flat: Tensor) -> Tensor:
        parts = zip(names, flat.split(sizes), strict=True)
        moved = {name: part.view_as(parameters[name]) for name, part in parts}
        outputs = torch.func.functional_call(model, parameters | moved, (x,))
        return nn.functional.cross_entropy(outputs, y)

    start = torch.cat([parameters[name].reshape(-1) for name in names])
    return hessian_of(loss, start)
