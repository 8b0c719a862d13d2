"""Monitor flatness in Lightning, train with SAM, and stop when loss and flatness have settled.

Needs `pip install 'spiritlevel[lightning]'`. Run it with `python examples/lightning_callback.py`.
"""

from __future__ import annotations

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from spiritlevel.inputs import build, load
from spiritlevel.training import SAM
from spiritlevel.training.integrations.lightning import (
    FlatnessMonitorCallback,
    FlatnessStoppingCallback,
)


class Digits(LightningModule):
    """An ordinary LightningModule; only the optimizer is new."""

    def __init__(self) -> None:
        super().__init__()
        self.network = build("digits_cnn", seed=0)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the ten digits."""
        return self.network(x)

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        """Return the loss; SAM calls this twice per step."""
        return F.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        """Log the loss that the stopping rule looks at."""
        self.log("val_loss", F.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return SAM around a plain optimizer."""
        return SAM(torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9), rho=0.05)


def main() -> None:
    """Train for three epochs."""
    torch.manual_seed(0)
    train, val = (TensorDataset(*load("digits", part)) for part in ("train", "test"))
    flatness = FlatnessMonitorCallback(
        DataLoader(train, batch_size=64), measures="head.kappa", num_samples=128
    )
    stopping = FlatnessStoppingCallback(rule="both", flatness="flatness/head.kappa")
    trainer = Trainer(
        max_epochs=3,
        accelerator="cpu",
        callbacks=[flatness, stopping],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(
        Digits(),
        DataLoader(train, batch_size=64, shuffle=True),
        DataLoader(val, batch_size=250),
    )
    values = [row["head.kappa"] for row in flatness.rows]
    print("head.kappa by epoch:", values, "stopped:", stopping.reason or "no")
    assert len(values) == 3
    logged = float(trainer.callback_metrics["flatness/head.kappa"])  # any callback can monitor it
    assert abs(logged - values[-1]) <= 1e-6 * values[-1]


if __name__ == "__main__":
    main()
