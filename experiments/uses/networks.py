"""The trained networks that the uses are measured on, kept in a folder between runs.

digits        two convolutions and a head on the digits of the package, 30 epochs
lenet5        LeNet-5 on MNIST, three epochs
resnet18      ResNet-18 with 32 channels in its first stage on CIFAR-10, 30 epochs
efficientnet  EfficientNet-Lite0 from its ImageNet weights on CIFAR-10 at 128 px, eight epochs
language      a transformer of 1.9 million weights on bytes of Python's standard library

`python experiments/uses/networks.py --mnist FOLDER --cifar PATH --out FOLDER` trains them. PATH is
the folder or archive that CIFAR-10 comes in, or an .npz with a part of it. The last three want a
GPU: `--device cuda`.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import time
from typing import Any

import language
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spiritlevel.inputs import (
    build,
    digits,
    load_checkpoint,
    read_cifar,
    read_mnist,
    read_npz,
    save_checkpoint,
)

Data = tuple[Tensor, Tensor]
SEEDS = (0, 1, 2)


@dataclasses.dataclass(frozen=True)
class Kind:
    """A network and how it is trained."""

    model: str
    data: str
    epochs: int
    rate: float
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    flips: bool = False  # whether images are mirrored and shifted at random
    adam: bool = False  # instead of SGD
    normalize: bool = True  # the inputs

    def build(self, seed: int) -> nn.Module:
        """Before training."""
        if self.model == "language":
            torch.manual_seed(seed)
            return language.LanguageModel()
        return build(self.model, seed=seed, **self.arguments)


KINDS = {
    "digits": Kind("digits_cnn", "digits", 30, 0.05),
    "lenet5": Kind("lenet5", "mnist", 3, 0.05),
    "resnet18": Kind("resnet18", "cifar10", 30, 0.1, {"width": 32}, flips=True),
    # Its pixels are shifted by the network itself, as it was trained.
    "efficientnet": Kind("efficientnet_lite0", "cifar10", 8, 0.02, flips=True, normalize=False),
    "language": Kind("language", "text", 20, 2e-3, adam=True, normalize=False),
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
    name: str,
    mnist: pathlib.Path | None,
    cifar: pathlib.Path | None,
    device: str = "cpu",
) -> tuple[Data, Data]:
    """Training and test data; images are centred and scaled."""
    kind = KINDS[name]
    splits = ("train", "test")
    if kind.data == "digits":
        parts = [digits(split) for split in splits]
    elif kind.data == "text":
        parts = [language.text(split) for split in splits]
    elif kind.data == "mnist":
        if mnist is None:
            raise SystemExit(f"{name} is trained on MNIST: give --mnist FOLDER.")
        parts = [read_mnist(mnist, split) for split in splits]
    else:
        return load_cifar(cifar, name, device, normalize=kind.normalize)
    return prepared(parts, device, kind.normalize)


def load_cifar(
    cifar: pathlib.Path | None, name: str, device: str, *, normalize: bool = True
) -> tuple[Data, Data]:
    """Training and test images for the network of this name."""
    if cifar is None:
        raise SystemExit(f"{name} is trained on CIFAR-10: give --cifar PATH.")
    read = read_npz if cifar.suffix == ".npz" else read_cifar
    return prepared([read(cifar, split) for split in ("train", "test")], device, normalize)


def prepared(parts: list[Data], device: str, normalize: bool) -> tuple[Data, Data]:
    """On the device, and centred and scaled by the training images."""
    if normalize:
        x = parts[0][0]
        mean, std = x.mean(dim=(0, 2, 3), keepdim=True), x.std(dim=(0, 2, 3), keepdim=True)
        parts = [((x - mean) / std, y) for x, y in parts]
    train, test = ((x.to(device), y.to(device)) for x, y in parts)
    return train, test


def fit(model: nn.Module, data: Data, kind: Kind, *, seed: int) -> nn.Module:
    """Train in place, with a learning rate that rises and falls."""
    generator = torch.Generator().manual_seed(seed)
    x, y = data
    if kind.adam:
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=kind.rate)
    else:
        optimizer = torch.optim.SGD(
            model.parameters(), lr=kind.rate, momentum=0.9, nesterov=True, weight_decay=5e-4
        )
    steps = kind.epochs * -(-len(x) // 128)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, kind.rate, total_steps=steps)
    on_gpu = x.is_cuda  # where bfloat16 halves the time; on a CPU it is slow
    model.train()
    for _ in range(kind.epochs):
        for index in torch.randperm(len(x), generator=generator).to(x.device).split(128):
            inputs = _shifted(x[index], generator) if kind.flips else x[index]
            with torch.autocast(x.device.type, torch.bfloat16, enabled=on_gpu):
                loss = F.cross_entropy(model(inputs), y[index])
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
    """The share of images that are recognized, or of bytes that are guessed."""
    with torch.no_grad():
        right = sum(
            int((model(x).argmax(dim=1) == y).sum())
            for x, y in zip(data[0].split(500), data[1].split(500), strict=True)
        )
    return right / data[1].numel()


def mean_loss(model: nn.Module, data: Data) -> float:
    """The mean cross-entropy, in float64: what a single unit adds is small."""
    with torch.no_grad():
        total = sum(
            float(F.cross_entropy(model(x).double(), y, reduction="sum"))
            for x, y in zip(data[0].split(500), data[1].split(500), strict=True)
        )
    return total / data[1].numel()


def trained(name: str, seed: int, data: tuple[Data, Data], folder: pathlib.Path) -> Trained:
    """The network from the folder, or trained now."""
    kind = KINDS[name]
    model = kind.build(seed).to(data[0][0].device)
    path = folder / f"{name}-{seed}.safetensors"
    if path.exists():
        load_checkpoint(model, path)
    else:
        start = time.perf_counter()
        fit(model, data[0], kind, seed=seed)
        folder.mkdir(parents=True, exist_ok=True)
        save_checkpoint(model, path)
        print(f"{path.name}: {time.perf_counter() - start:.0f} s", flush=True)
    return Trained(name, seed, model.eval(), *data)


RESULTS = pathlib.Path(__file__).parents[1] / "results" / "uses"


def parser(text: str) -> argparse.ArgumentParser:
    """Where the data and the networks are."""
    found = argparse.ArgumentParser(description=text)
    found.add_argument("--mnist", type=pathlib.Path, help="folder of the idx files")
    found.add_argument("--cifar", type=pathlib.Path, help="archive, folder of its files, or .npz")
    found.add_argument("--device", default="cpu")
    found.add_argument("--out", type=pathlib.Path, default=pathlib.Path("trained"))
    found.add_argument("--results", type=pathlib.Path, default=RESULTS, help="a folder")
    found.add_argument("--networks", nargs="+", default=["digits", "lenet5"], choices=list(KINDS))
    found.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    return found


def main() -> None:
    """Train all that are missing, and print how good they are."""
    asked = parser("Train the networks.").parse_args()
    for name in asked.networks:
        data = load_data(name, asked.mnist, asked.cifar, asked.device)
        for seed in asked.seeds:
            model = trained(name, seed, data, asked.out).model
            print(f"{name} {seed}: test accuracy {accuracy(model, data[1]):.4f}", flush=True)


if __name__ == "__main__":
    main()
