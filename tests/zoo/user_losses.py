"""Losses as users write them: subclasses, wrappers, functions; all are means over samples."""

from __future__ import annotations

import functools
import types

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .torch_losses import WEIGHTS


class Focal(nn.CrossEntropyLoss):
    """A forward of its own, which ignores `reduction`."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        entropy = F.cross_entropy(outputs, targets, reduction="none")
        return ((1 - (-entropy).exp()).square() * entropy).mean()


class WeightedFocal(nn.CrossEntropyLoss):
    """Class weights, but a plain mean over samples."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        entropy = F.cross_entropy(outputs, targets, weight=self.weight, reduction="none")
        focal = (1 - (-entropy).exp()).square() * entropy
        return focal if self.reduction == "none" else focal.mean()


class Cooled(nn.CrossEntropyLoss):
    """torch's weighted mean of other scores."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return super().forward(outputs / 2.5, targets)


class Likelihood(nn.NLLLoss):
    """The same for a loss that takes log-probabilities."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return super().forward(outputs.log_softmax(dim=1), targets)


class Divergence(nn.KLDivLoss):
    """A mean over elements or over samples, by `reduction`."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return super().forward(outputs.log_softmax(dim=1), targets)


class Halved(nn.HuberLoss):
    """A mean over elements."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return super().forward(outputs, targets) / 2


class Smoothed(nn.CrossEntropyLoss):
    """Only another default."""

    def __init__(self) -> None:
        super().__init__(label_smoothing=0.2)


class Called(nn.MSELoss):
    """What changes the result is not in `forward`."""

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return 3 * super().__call__(outputs, targets)


class Doubling(nn.Module):
    """A second parent that stands behind torch's loss and acts all the same."""

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return 2 * super().__call__(outputs, targets)


class DoubledError(nn.MSELoss, Doubling):
    """Nothing of its own."""


class Hidden(nn.CrossEntropyLoss):
    """An option that is computed."""

    @property
    def label_smoothing(self) -> float:
        return 0.3

    @label_smoothing.setter
    def label_smoothing(self, value: float) -> None:
        del value


class Learned(nn.Module):
    """A trained temperature and a buffer, both float32."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("prior", torch.tensor([0.0, 1.0, 2.0]))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs / self.temperature + self.prior, targets)


class Sum(nn.Module):
    """Two losses of torch inside."""

    def __init__(self) -> None:
        super().__init__()
        self.entropy, self.size = nn.CrossEntropyLoss(), nn.MSELoss()

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.entropy(outputs, targets) + 0.1 * self.size(outputs, torch.zeros_like(outputs))


class Gaussian(nn.GaussianNLLLoss):
    """The mean and the log-variance are two outputs."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return super().forward(outputs[:, :1], targets[:, :1], outputs[:, 1:2].exp())


class Branching(nn.Module):
    """Control flow that depends on values, which cannot be vectorized."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        losses = []
        for z, y in zip(outputs, targets, strict=True):
            gap = (z - y).square().sum()
            losses.append(gap if float(gap.detach()) < 1 else 2 * gap.sqrt() - 1)
        return torch.stack(losses).mean()


class Counting(nn.Module):
    """It remembers how often it was called, and what came."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.register_buffer("total", torch.zeros(()))
        self.register_buffer("last", torch.zeros(()))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.calls += 1
        self.total += outputs.detach().sum()
        self.last = outputs.detach().mean()
        return F.cross_entropy(outputs, targets)


def replaced_forward() -> nn.Module:
    """A method of one object was replaced."""
    loss = nn.CrossEntropyLoss()
    loss.forward = lambda z, y: F.cross_entropy(2 * z, y)
    return loss


def bound_forward() -> nn.Module:
    """The same by a bound method, which looks at `reduction`."""
    loss = nn.MSELoss()

    def forward(self: nn.MSELoss, z: Tensor, y: Tensor) -> Tensor:
        return 2 * F.mse_loss(z, y, reduction=self.reduction)

    loss.forward = types.MethodType(forward, loss)
    return loss


def hooked() -> nn.Module:
    """Hooks change what goes in and what comes out."""
    loss = nn.CrossEntropyLoss()
    loss.register_forward_pre_hook(lambda _, args: (2 * args[0], args[1]))
    loss.register_forward_hook(lambda _module, _args, result: 3 * result)
    return loss


def fourth_power(outputs: Tensor, targets: Tensor) -> Tensor:
    """One value per element."""
    return (outputs - targets) ** 4


def some_ignored(targets: Tensor) -> Tensor:
    """Every third target does not count."""
    return targets.index_fill(0, torch.arange(0, len(targets), 3), -100)


LABELS = torch.tensor([0, 1, 2, 2, 1, 0, 2, 2, 0, 1, 1, 2, 0])
NUMBERS = torch.randn(13, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
SHARES = NUMBERS.softmax(dim=1)

# name: what is passed as `loss`, and targets; its own mean is the truth
USER_LOSSES = {
    "focal": (Focal(), LABELS),
    "focal with unused weights": (Focal(weight=WEIGHTS), LABELS),
    "weighted focal": (WeightedFocal(weight=WEIGHTS), LABELS),
    "cooled": (Cooled(), LABELS),
    "cooled, weights": (Cooled(weight=WEIGHTS), LABELS),
    "cooled, weights and ignored": (Cooled(weight=WEIGHTS), some_ignored(LABELS)),
    "cooled, ignored": (Cooled(), some_ignored(LABELS)),
    "cooled, soft": (Cooled(label_smoothing=0.1), SHARES),
    "likelihood, weights": (Likelihood(weight=WEIGHTS), LABELS),
    "likelihood, ignored": (Likelihood(), some_ignored(LABELS)),
    "divergence by sample": (Divergence(reduction="batchmean"), SHARES),
    "divergence by element": (Divergence(reduction="mean"), SHARES),
    "smoothed": (Smoothed(), LABELS),
    "halved": (Halved(), NUMBERS),
    "called": (Called(), NUMBERS),
    "doubled error": (DoubledError(), NUMBERS),
    "hidden option": (Hidden(), LABELS),
    "learned temperature": (Learned(), LABELS),
    "sum of two": (Sum(), LABELS),
    "gaussian": (Gaussian(), NUMBERS),
    "branching": (Branching(), NUMBERS),
    "replaced forward": (replaced_forward(), LABELS),
    "bound forward": (bound_forward(), NUMBERS),
    "hooked": (hooked(), LABELS),
    "compiled": (torch.compile(Focal(), backend="eager"), LABELS),
    "functional": (F.cross_entropy, LABELS),
    "functional error": (F.huber_loss, NUMBERS),
    "partial": (functools.partial(F.cross_entropy, label_smoothing=0.1), LABELS),
    "partial, weights": (functools.partial(F.cross_entropy, weight=WEIGHTS.double()), LABELS),
    "lambda of a mean": (lambda z, y: F.cross_entropy(z, y), LABELS),
    "lambda of values": (lambda z, y: F.cross_entropy(z, y, reduction="none"), LABELS),
    "elements": (fourth_power, NUMBERS),
    "linear": (lambda z, y: (z * y).sum(dim=1), NUMBERS),
    "squared hinge": (lambda z, y: (1 - z * y).clamp(min=0).square().sum(dim=1), NUMBERS.sign()),
    "at a kink": (lambda z, y: (z * (y > 0)).abs().sum(dim=1), NUMBERS),  # some are exactly 0
}
