"""A small module of Lightning and runs of it, for the tests of the callbacks."""

import logging

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

lightning = pytest.importorskip("lightning.pytorch")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def samples(seed: int, count: int = 24) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 6, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long())


class Net(lightning.LightningModule):
    """A small network with dropout and BatchNorm, and what users write around it."""

    def __init__(self, make_optimizer=None, *, loss: str = "val_loss", dropout: float = 0.2):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 3)
        )
        self.make_optimizer = make_optimizer or (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9))
        self.loss = loss

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        return F.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch, index):
        x, y = batch
        self.log(self.loss, F.cross_entropy(self(x), y))

    def configure_optimizers(self):
        return self.make_optimizer(self.parameters())


class Recorder(lightning.Callback):
    """The batches of a run; batch n draws the random numbers of seed n."""

    def __init__(self, batches):
        self.batches = batches

    def on_train_batch_start(self, trainer, module, batch, index):
        self.batches.append([tensor.clone() for tensor in batch])
        torch.manual_seed(len(self.batches))


def fit(model, callbacks, folder, *, epochs=3, validation=True, shuffle=True, resume=None, **more):
    trainer = lightning.Trainer(
        default_root_dir=folder,
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=callbacks,
        enable_progress_bar=False,
        enable_model_summary=False,
        **({"logger": False, "enable_checkpointing": False} | more),
    )
    torch.manual_seed(1)
    train = DataLoader(samples(0), batch_size=8, shuffle=shuffle)
    val = DataLoader(samples(1), batch_size=12) if validation else None
    trainer.fit(model, train, val, ckpt_path=resume)
    return trainer


def assert_same_weights(one, other):
    """To the last bit, running statistics too."""
    assert one.state_dict().keys() == other.state_dict().keys()
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
