"""Real runs of Lightning's Trainer: rows, logged names, stopping, resuming, SAM and a penalty."""

import csv
import json
import logging
import math
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import spiritlevel as sl
from spiritlevel.training.flatness_penalty import FlatnessPenalty
from spiritlevel.training.sam import SAM

lightning = pytest.importorskip("lightning.pytorch")
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint  # noqa: E402
from lightning.pytorch.loggers import CSVLogger  # noqa: E402

from spiritlevel.integrations.lightning import (  # noqa: E402
    FlatnessMonitorCallback,
    FlatnessStoppingCallback,
)

KAPPA = "flatness/relative.kappa"
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice on workers and loggers
        yield


def samples(seed: int, count: int = 24) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 6, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long())


class Net(lightning.LightningModule):
    """A small network with dropout and BatchNorm, and what users write around it."""

    def __init__(self, make_optimizer=None, *, penalty: float = 0.0, loss: str = "val_loss"):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)
        )
        self.make_optimizer = make_optimizer or (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9))
        self.penalty = FlatnessPenalty(self.net, weight=penalty) if penalty else None
        self.loss = loss

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        x, y = batch
        if self.penalty is None:
            return F.cross_entropy(self(x), y)
        with self.penalty.shared_forward():
            loss = F.cross_entropy(self(x), y)
        return loss + self.penalty.of(loss, len(x))

    def validation_step(self, batch, index):
        x, y = batch
        self.log(self.loss, F.cross_entropy(self(x), y))

    def configure_optimizers(self):
        return self.make_optimizer(self.parameters())


def fit(model, callbacks, tmp_path, *, epochs=3, validation=True, resume=None, **options):
    trainer = lightning.Trainer(
        default_root_dir=tmp_path,
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=callbacks,
        enable_progress_bar=False,
        enable_model_summary=False,
        **({"logger": False, "enable_checkpointing": False} | options),
    )
    torch.manual_seed(1)
    train = DataLoader(samples(0), batch_size=8, shuffle=True)
    val = DataLoader(samples(1), batch_size=12) if validation else None
    trainer.fit(model, train, val, ckpt_path=resume)
    return trainer


def test_rows_log_names_and_an_undisturbed_training(tmp_path):
    plain, watched = Net(), Net()
    fit(plain, [], tmp_path)
    path = tmp_path / "run.jsonl"
    probe = DataLoader(samples(0), batch_size=12, shuffle=True)
    callback = FlatnessMonitorCallback(probe, to=path, prog_bar=True)
    logger = CSVLogger(tmp_path)
    trainer = fit(watched, [callback], tmp_path, logger=logger)
    for name, value in plain.state_dict().items():
        assert torch.equal(value, watched.state_dict()[name]), name
    assert [(row["step"], row["epoch"]) for row in callback.rows] == [(3, 0), (6, 1), (9, 2)]
    assert [json.loads(line) for line in path.read_text().splitlines()] == callback.rows
    last = callback.rows[-1]["relative.kappa"]
    report = sl.measure(watched.eval(), probe, measures="relative.kappa")
    # the probe is another order of the same samples: sums differ in their last digits
    assert last == pytest.approx(report["relative.kappa"].value, rel=1e-5)
    assert float(trainer.callback_metrics[KAPPA]) == pytest.approx(last, rel=1e-6)
    assert KAPPA in trainer.progress_bar_metrics
    with open(f"{logger.log_dir}/metrics.csv") as file:
        logged = [float(row[KAPPA]) for row in csv.DictReader(file) if row.get(KAPPA)]
    assert logged == pytest.approx([row["relative.kappa"] for row in callback.rows], rel=1e-6)


def test_step_rows_with_accumulated_gradients(tmp_path):
    callback = FlatnessMonitorCallback(
        lambda trainer: trainer.train_dataloader, every=2, module="net", measures="head.trace"
    )
    fit(Net(), [callback], tmp_path, accumulate_grad_batches=2, epochs=3)
    # 3 batches an epoch make 2 steps: one of two batches, one of the last
    assert [(row["step"], row["epoch"]) for row in callback.rows] == [(2, 0), (4, 1), (6, 2)]


def test_an_epoch_that_max_steps_breaks_off_has_its_row(tmp_path):
    callback = FlatnessMonitorCallback(samples(0).tensors, measures="head.trace")
    fit(Net(), [callback], tmp_path, max_steps=4)
    assert [(row["step"], row["epoch"]) for row in callback.rows] == [(3, 0), (4, 1)]


def test_checkpoint_and_early_stopping_can_monitor_it(tmp_path):
    monitor = FlatnessMonitorCallback(samples(0).tensors)
    best = ModelCheckpoint(tmp_path, monitor=KAPPA, mode="min", filename="best")
    early = EarlyStopping(monitor=KAPPA, patience=1, mode="min", min_delta=1e9)
    trainer = fit(Net(), [monitor, early, best], tmp_path, enable_checkpointing=True, epochs=6)
    assert trainer.current_epoch == 2  # nothing improves by 1e9: one epoch to see it
    values = [row["relative.kappa"] for row in monitor.rows]
    assert float(best.best_model_score) == pytest.approx(min(values), rel=1e-6)


def test_stopping_by_loss_flatness_and_both(tmp_path):
    frozen = lambda p: torch.optim.SGD(p, lr=0.0)  # noqa: E731 nothing ever changes
    for rule in ("loss", "flatness", "both"):
        net = Net(frozen, loss="my_loss")
        net.net[1].momentum = 0.0  # nor do the statistics
        stop = FlatnessStoppingCallback(rule, patience=2, monitor="my_loss")
        callbacks = [FlatnessMonitorCallback(samples(0).tensors), stop]
        trainer = fit(net, callbacks, tmp_path, epochs=8)
        assert trainer.current_epoch == 3, rule  # epochs 0, 1, 2
        assert trainer.should_stop
        assert "2 epochs" in stop.reason


def test_old_values_do_not_count_as_stable(tmp_path):
    stop = FlatnessStoppingCallback("flatness", patience=1)
    callbacks = [FlatnessMonitorCallback(samples(0).tensors, every="2 epochs"), stop]
    fit(Net(), callbacks, tmp_path, epochs=5)
    assert stop.stopping.state_dict()["epochs"] == [1, 3]
    stop = FlatnessStoppingCallback("loss", patience=1)
    fit(Net(), [stop], tmp_path, epochs=5, check_val_every_n_epoch=2)
    assert stop.stopping.state_dict()["epochs"] == [1, 3]


def test_a_failed_measurement_is_not_taken_for_a_stable_one(tmp_path):
    class Poison(lightning.Callback):
        def on_train_batch_end(self, trainer, module, *args):
            if trainer.current_epoch >= 1:
                module.net[4].weight.data[0, 0] = math.nan

    stop = FlatnessStoppingCallback("flatness", patience=1, tolerance=1e9)
    monitor = FlatnessMonitorCallback(samples(0).tensors)
    fit(Net(), [Poison(), monitor, stop], tmp_path, epochs=3, validation=False)
    assert [row["status"] for row in monitor.rows] == ["ok", "failed", "failed"]
    assert len(stop.stopping.state_dict()["epochs"]) == 3
    assert stop.reason == ""


def test_best_weights_come_back(tmp_path):
    stop = FlatnessStoppingCallback("loss", patience=2, restore_best=True)
    net = Net(lambda p: torch.optim.SGD(p, lr=30.0))  # soon far away
    fit(net, [stop], tmp_path, epochs=6)
    losses = stop.stopping.state_dict()["losses"]
    net.eval()
    x, y = samples(1).tensors
    assert float(F.cross_entropy(net(x), y)) == pytest.approx(min(losses), rel=1e-5)


def test_resume_from_a_checkpoint(tmp_path):
    def callbacks(path):
        return [
            FlatnessMonitorCallback(samples(0).tensors, to=path),
            FlatnessStoppingCallback("both", patience=2, tolerance=5.0, min_delta=1e9),
        ]

    straight = callbacks(tmp_path / "straight.jsonl")
    fit(Net(), straight, tmp_path, epochs=6)
    saved = ModelCheckpoint(tmp_path, save_top_k=-1, filename="{epoch}")
    broken = callbacks(tmp_path / "run.jsonl")
    fit(Net(), [*broken, saved], tmp_path, epochs=2, enable_checkpointing=True)
    resumed = callbacks(tmp_path / "run.jsonl")
    checkpoint = tmp_path / "epoch=0.ckpt"
    trainer = fit(Net(), resumed, tmp_path, epochs=6, resume=checkpoint)
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert [row["step"] for row in lines] == [3, 6, 9]  # the second was written twice, kept once
    assert lines == resumed[0].rows
    assert [row["epoch"] for row in resumed[0].rows] == [row["epoch"] for row in straight[0].rows]
    assert trainer.current_epoch == 3
    assert resumed[1].reason.split(":")[0] == straight[1].reason.split(":")[0] != ""


def test_bad_input(tmp_path):
    probe = samples(0).tensors
    for change, text in [
        ({"every": 0}, r"'every' argument.*Got 0"),
        ({"measures": "relative.kapa"}, r"Did you mean 'relative\.kappa'"),
        ({"max_overhead": 1.0}, r"Got 1\.0"),
        ({"los": "mse"}, r"no argument 'los'"),
    ]:
        with pytest.raises(sl.SpiritlevelError, match=text):
            FlatnessMonitorCallback(probe, **change)
    with pytest.raises(sl.SpiritlevelError, match=r"Got an empty loader"):
        fit(Net(), [FlatnessMonitorCallback([])], tmp_path)
    with pytest.raises(sl.SpiritlevelError, match=r"'both' needs the validation loss 'val_loss'"):
        fit(Net(), [FlatnessStoppingCallback("both")], tmp_path, validation=False)
    with pytest.raises(
        sl.SpiritlevelError, match=r"looks for 'flatness/relative\.kappa'.*val_loss"
    ):
        fit(Net(), [FlatnessStoppingCallback("flatness")], tmp_path)
    with pytest.raises(
        sl.SpiritlevelError, match=r"looks for 'valid_loss'.*self\.log\('valid_loss'"
    ):
        fit(Net(), [FlatnessStoppingCallback("loss", monitor="valid_loss")], tmp_path)


class Recorder(lightning.Callback):
    """The batches of a run."""

    def __init__(self, batches):
        self.batches = batches

    def on_train_batch_start(self, trainer, module, batch, index):
        self.batches.append([tensor.clone() for tensor in batch])


def test_sam_steps_as_in_a_plain_loop(tmp_path):
    def make(parameters):
        return SAM(torch.optim.SGD(parameters, lr=0.1, momentum=0.9), rho=0.05)

    net, plain = Net(make), Net(make)
    for model in (net, plain):
        model.net[3].p = 0.0
    batches = []
    monitor = FlatnessMonitorCallback(samples(0).tensors)
    trainer = fit(net, [Recorder(batches), monitor], tmp_path, epochs=2)
    assert (trainer.global_step, len(batches)) == (6, 6)
    assert [row["step"] for row in monitor.rows] == [3, 6]
    optimizer = plain.configure_optimizers()
    for x, y in batches:
        F.cross_entropy(plain(x), y).backward()
        with optimizer.perturbed():
            F.cross_entropy(plain(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    for name, value in plain.state_dict().items():
        assert torch.equal(value, net.state_dict()[name]), name


def test_a_penalty_in_training_step(tmp_path):
    plain, flat = Net(), Net(penalty=0.5)
    monitors = [FlatnessMonitorCallback(samples(0).tensors) for _ in range(2)]
    fit(plain, [monitors[0]], tmp_path, epochs=4)
    fit(flat, [monitors[1]], tmp_path, epochs=4)
    assert flat.penalty.value is not None
    assert not torch.equal(plain.net[0].weight, flat.net[0].weight)
    assert "penalty" not in " ".join(flat.state_dict())


def test_frameworks_are_loaded_only_when_asked_for():
    code = """
import sys
sys.modules.update({"lightning": None, "transformers": None})
import spiritlevel.training, spiritlevel.integrations
for name in ("lightning", "transformers"):
    try:
        __import__(f"spiritlevel.integrations.{name}")
    except ImportError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "The Lightning callback needs lightning: pip install 'spiritlevel[lightning]'",
        "The Trainer callback needs transformers: pip install 'spiritlevel[transformers]'",
    ], done.stderr
