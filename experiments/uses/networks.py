"""The trained networks that the uses are measured on, kept in a folder between runs.

digits     two convolutions and a head on the digits of the package, 30 epochs
lenet5     LeNet-5 on MNIST, three epochs
resnet18   ResNet-18 with 8 channels in its first stage on 20,000 images of CIFAR-10, six epochs

`python experiments/uses/networks.py --mnist FOLDER --cifar FILE.npz --out FOLDER` trains them. The
.npz has uint8 images x_train and x_test of shape (N, 3, 32, 32), and labels y_train and y_test.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spiritlevel.study.checkpoints import load_checkpoint, save_checkpoint
from spiritlevel.study.data import digits, read_npz
from spiritlevel.study.data.idx import read_mnist
from spiritlevel.study.models import build

Data = tuple[Tensor, Tensor]
SEEDS = (0, 1, 2)


@dataclasses.dataclass(frozen=True)
class Kind:
    """A network and how it is trained."""

    model: str
    arguments: dict[str, int]
    epochs: int
    rate: float
    flips: bool  # whether images are mirrored and shifted at random


KINDS = {
    "digits": Kind("digits_cnn", {}, 30, 0.05, False),
    "lenet5": Kind("lenet5", {}, 3, 0.05, False),
    "resnet18": Kind("resnet18", {"width": 8}, 6, 0.1, True),
}


@dataclasses.dataclass(frozen=True)
class Trained:
    """A network in eval mode, its data, and its seed."""

    name: str
    seed: int
    model: nn.Module
    train: Data
    test: Data


def load_data(
    name: str, mnist: pathlib.Path | None, cifar: pathlib.Path | None
) -> tuple[Data, Data]:
    """Training and test data, centred and scaled."""
    if name == "digits":
        parts = [digits(split) for split in ("train", "test")]
    elif name == "lenet5":
        if mnist is None:
            raise SystemExit("lenet5 is trained on MNIST: give --mnist FOLDER.")
        parts = [read_mnist(mnist, split) for split in ("train", "test")]
    else:
        if cifar is None:
            raise SystemExit("resnet18 is trained on CIFAR-10: give --cifar FILE.npz.")
        parts = [read_npz(cifar, split) for split in ("train", "test")]
    x = parts[0][0]
    mean, std = x.mean(dim=(0, 2, 3), keepdim=True), x.std(dim=(0, 2, 3), keepdim=True)
    first, second = (((x - mean) / std, y) for x, y in parts)
    return first, second


def fit(
    model: nn.Module, data: Data, *, epochs: int, rate: float, flips: bool, seed: int
) -> nn.Module:
    """Train in place with SGD and a learning rate that rises and falls."""
    generator = torch.Generator().manual_seed(seed)
    x, y = data
    optimizer = torch.optim.SGD(
        model.parameters(), lr=rate, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    steps = epochs * -(-len(x) // 128)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    model.train()
    for _ in range(epochs):
        for index in torch.randperm(len(x), generator=generator).split(128):
            images = x[index]
            if flips:
                images = _shifted(images, generator)
            loss = F.cross_entropy(model(images), y[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return model.eval()


def _shifted(images: Tensor, generator: torch.Generator) -> Tensor:
    if torch.rand((), generator=generator) < 0.5:
        images = images.flip(3)
    dy, dx = torch.randint(-3, 4, (2,), generator=generator).tolist()
    return F.pad(images, (3 + dx, 3 - dx, 3 + dy, 3 - dy))[:, :, 3:-3, 3:-3]


def accuracy(model: nn.Module, data: Data) -> float:
    """The share of images that are recognized."""
    with torch.no_grad():
        right = sum(
            int((model(x).argmax(dim=1) == y).sum())
            for x, y in zip(data[0].split(500), data[1].split(500), strict=True)
        )
    return right / len(data[1])


def mean_loss(model: nn.Module, data: Data) -> float:
    """The mean cross-entropy."""
    with torch.no_grad():
        total = sum(
            float(F.cross_entropy(model(x), y, reduction="sum"))
            for x, y in zip(data[0].split(500), data[1].split(500), strict=True)
        )
    return total / len(data[1])


def trained(name: str, seed: int, data: tuple[Data, Data], folder: pathlib.Path) -> Trained:
    """The network from the folder, or trained now."""
    kind = KINDS[name]
    model = build(kind.model, seed=seed, **kind.arguments)
    path = folder / f"{name}-{seed}.safetensors"
    if path.exists():
        load_checkpoint(model, path)
    else:
        start = time.perf_counter()
        fit(model, data[0], epochs=kind.epochs, rate=kind.rate, flips=kind.flips, seed=seed)
        folder.mkdir(parents=True, exist_ok=True)
        save_checkpoint(model, path)
        print(f"{path.name}: {time.perf_counter() - start:.0f} s", flush=True)
    return Trained(name, seed, model.eval(), *data)


RESULTS = pathlib.Path(__file__).parents[1] / "results" / "uses"


def parser(text: str) -> argparse.ArgumentParser:
    """Where the data and the networks are."""
    found = argparse.ArgumentParser(description=text)
    found.add_argument("--mnist", type=pathlib.Path, help="folder of the idx files")
    found.add_argument("--cifar", type=pathlib.Path, help=".npz with both splits")
    found.add_argument("--out", type=pathlib.Path, default=pathlib.Path("trained"))
    found.add_argument("--results", type=pathlib.Path, default=RESULTS, help="a folder")
    found.add_argument("--networks", nargs="+", default=list(KINDS), choices=list(KINDS))
    found.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    return found


def main() -> None:
    """Train all that are missing, and print how good they are."""
    asked = parser("Train the networks.").parse_args()
    for name in asked.networks:
        data = load_data(name, asked.mnist, asked.cifar)
        for seed in asked.seeds:
            model = trained(name, seed, data, asked.out).model
            print(f"{name} {seed}: test accuracy {accuracy(model, data[1]):.4f}", flush=True)


if __name__ == "__main__":
    main()
