"""The networks of the demo: one architecture, one data set, clearly different ends of training."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..data import digits
from ..models import mlp

NUM_TRAIN = 400  # of 1,297, so that networks which all fit them differ visibly on the rest
HIDDEN = (128, 128)
MAX_EPOCHS = 500
QUICK_EPOCHS = 40
SAME_LOSS = 0.01  # networks stopped at one training loss are about equally confident


@dataclasses.dataclass(frozen=True)
class Run:
    """One training run, and the networks taken from it as the training loss falls."""

    optimizer: str
    lr: float
    batch: int
    stops: dict[str, float]  # name: training loss
    label_noise: float = 0.0

    @property
    def recipe(self) -> str:
        """In words."""
        batch = "full batch" if self.batch >= NUM_TRAIN else f"batch {self.batch}"
        noise = f", {self.label_noise:.0%} wrong labels" if self.label_noise else ""
        return f"{self.optimizer}, learning rate {self.lr:g}, {batch}{noise}"


EARLY, SGD, LONG, NOISE = "SGD, stopped early", "SGD", "SGD, trained on", "label noise"
RUNS = (
    Run("SGD", 0.01, 8, {EARLY: 0.5, SGD: SAME_LOSS, LONG: 5e-4}),
    Run("SGD", 0.05, NUM_TRAIN, {"SGD, full batch": SAME_LOSS}),
    Run("Adam", 1e-3, 32, {"Adam": SAME_LOSS}),
    Run("Adam", 1e-2, NUM_TRAIN, {"Adam, full batch": SAME_LOSS}),
    Run("Adam", 1e-3, 32, {NOISE: SAME_LOSS}, label_noise=0.3),
)


@dataclasses.dataclass(frozen=True)
class Trained:
    """A network, what it was trained on, and how it does on images it has not seen."""

    name: str
    recipe: str
    model: nn.Module
    x: Tensor
    y: Tensor  # as trained: wrong labels included
    has_wrong_labels: bool
    target_loss: float
    epochs: int
    train_loss: float
    test_losses: Tensor  # one a test image
    test_accuracy: float

    @property
    def reached(self) -> bool:
        """Whether training ended because the loss was low enough."""
        return self.train_loss <= self.target_loss

    @property
    def test_loss(self) -> float:
        """Mean over the test images."""
        return float(self.test_losses.mean())

    @property
    def test_loss_stderr(self) -> float:
        """Standard error of the test loss, and so of the gap, over draws of the test images."""
        return _stderr(self.test_losses)

    @property
    def gap(self) -> float:
        """Generalization gap: test loss − train loss."""
        return self.test_loss - self.train_loss


def gap_difference(a: Trained, b: Trained) -> tuple[float, float]:
    """Gap of `a` − gap of `b`, and its standard error: both networks saw the same test images."""
    return a.gap - b.gap, _stderr(a.test_losses - b.test_losses)


def _stderr(values: Tensor) -> float:
    return float(values.std()) / len(values) ** 0.5


def train(run: Run, *, seed: int, quick: bool) -> Iterator[Trained]:
    """Train, and hand out a copy at each stop; what is not reached is handed out at the end."""
    x, clean = (t[:NUM_TRAIN] for t in digits("train"))
    generator = torch.Generator().manual_seed(seed)
    y = _with_wrong_labels(clean, run.label_noise, generator)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = mlp(64, hidden=HIDDEN)
    optimizer = _optimizer(run, model)
    # Quick networks stop at much higher losses: enough to see the form of the result.
    stops = {name: loss**0.4 if quick else loss for name, loss in run.stops.items()}
    waiting = dict(stops)
    limit = QUICK_EPOCHS if quick else MAX_EPOCHS
    for epoch in range(1, limit + 1):
        for index in torch.randperm(len(x), generator=generator).split(run.batch):
            optimizer.zero_grad()
            F.cross_entropy(model(x[index]), y[index]).backward()
            optimizer.step()
        loss = _loss(model, x, y)
        for name in [name for name, target in waiting.items() if loss <= target or epoch == limit]:
            yield _examined(name, run, copy.deepcopy(model).eval(), x, y, waiting.pop(name), epoch)
        if not waiting:
            return


def _with_wrong_labels(labels: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """A share of the labels replaced by another class, drawn evenly."""
    chosen = torch.randperm(len(labels), generator=generator)[: round(share * len(labels))]
    shift = torch.randint(1, 10, (len(chosen),), generator=generator)
    changed = labels.clone()
    changed[chosen] = (labels[chosen] + shift) % 10
    return changed


def _optimizer(run: Run, model: nn.Module) -> torch.optim.Optimizer:
    if run.optimizer == "SGD":
        return torch.optim.SGD(model.parameters(), lr=run.lr, momentum=0.9)
    return torch.optim.Adam(model.parameters(), lr=run.lr)


@torch.no_grad()
def _loss(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return float(F.cross_entropy(model(x), y))


@torch.no_grad()
def _examined(
    name: str, run: Run, model: nn.Module, x: Tensor, y: Tensor, target: float, epoch: int
) -> Trained:
    test_x, test_y = digits("test")
    outputs = model(test_x)
    losses = F.cross_entropy(outputs, test_y, reduction="none").double()
    return Trained(
        name=name,
        recipe=run.recipe,
        model=model,
        x=x,
        y=y,
        has_wrong_labels=run.label_noise > 0,
        target_loss=target,
        epochs=epoch,
        train_loss=_loss(model, x, y),
        test_losses=losses,
        test_accuracy=float((outputs.argmax(dim=1) == test_y).double().mean()),
    )
