"""Real runs of Lightning's Trainer: rows, logged names, stopping, resuming and SAM."""

import csv
import json
import math
import warnings

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

import fresh
import spiritlevel as sl
from spiritlevel.training.sam.optimizers import SAM

pytestmark = pytest.mark.sampled(4)  # the others at night

lightning = pytest.importorskip("lightning.pytorch")
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint  # noqa: E402
from lightning.pytorch.loggers import CSVLogger  # noqa: E402

from spiritlevel.training.integrations.lightning import (  # noqa: E402
    FlatnessMonitorCallback,
    FlatnessStoppingCallback,
)
from training.integrations.lightning_runs import Net, Recorder, assert_same_weights, fit, samples  # noqa: E402

KAPPA = "flatness/relative.kappa"


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice on workers and loggers
        yield


def test_rows_log_names_and_an_undisturbed_training(tmp_path):
    plain, watched = Net(), Net()
    fit(plain, [], tmp_path)
    path = tmp_path / "run.jsonl"
    probe = DataLoader(samples(0), batch_size=12, shuffle=True)
    callback = FlatnessMonitorCallback(probe, to=path, prog_bar=True)
    logger = CSVLogger(tmp_path)
    trainer = fit(watched, [callback], tmp_path, logger=logger)
    assert_same_weights(plain, watched)
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


@pytest.mark.parametrize("rule", ["loss", "flatness", "both", "trend"])
def test_stopping(tmp_path, rule):
    patience = 4 if rule == "trend" else 2
    net = Net(lambda p: torch.optim.SGD(p, lr=0.0), loss="my_loss")  # nothing ever changes
    net.net[1].momentum = 0.0  # nor do the statistics
    stop = FlatnessStoppingCallback(rule, patience=patience, monitor="my_loss")
    callbacks = [FlatnessMonitorCallback(samples(0).tensors), stop]
    trainer = fit(net, callbacks, tmp_path, epochs=8)
    assert trainer.current_epoch == (4 if rule == "trend" else 3)
    assert trainer.should_stop
    assert f"{patience} epochs" in stop.reason


def test_the_trend_is_seen_through_a_training_that_moves(tmp_path):
    def run(tolerance):
        stop = FlatnessStoppingCallback("trend", patience=4, tolerance=tolerance)
        monitor = FlatnessMonitorCallback(samples(0).tensors)
        trainer = fit(Net(), [monitor, stop], tmp_path, epochs=6, validation=False)
        return trainer.current_epoch, stop, [row["relative.kappa"] for row in monitor.rows]

    assert run(1e-9)[0] == 6  # no line is that flat
    epochs, stop, values = run(1e3)  # and any is flatter than this
    assert epochs == len(values) == 4
    assert stop.stopping.state_dict()["flatness"] == values
    assert "4 epochs" in stop.reason


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


@pytest.mark.parametrize("rule", ["both", "trend"])
def test_a_resumed_run_is_the_straight_one(tmp_path, rule):
    settings = {"both": (2, 5.0), "trend": (4, 1e3)}  # patience and tolerance
    patience, tolerance = settings[rule]

    def run(name, *more, **options):
        callbacks = [
            FlatnessMonitorCallback(samples(0).tensors, to=tmp_path / f"{name}.jsonl"),
            FlatnessStoppingCallback(rule, patience=patience, tolerance=tolerance, min_delta=1e9),
        ]
        net = Net(dropout=0.0)  # Lightning keeps no random state
        options = {"epochs": 6, "shuffle": False} | options
        trainer = fit(net, [*callbacks, *more], tmp_path, **options)
        return net, trainer, *callbacks

    net, straight, monitor, stop = run("straight")
    saved = ModelCheckpoint(tmp_path, save_top_k=-1, filename="{epoch}")
    run("run", saved, epochs=2, enable_checkpointing=True)
    again, trainer, resumed, judged = run("run", resume=tmp_path / "epoch=0.ckpt")
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert lines == resumed.rows  # the second epoch was written twice and is kept once
    for key in ("step", "epoch", "relative.kappa"):
        assert [row[key] for row in lines] == [row[key] for row in monitor.rows]
    assert trainer.current_epoch == straight.current_epoch == (3 if rule == "both" else 4)
    assert judged.reason == stop.reason != ""
    # as text, in which the missing losses of "trend" are equal
    assert str(judged.state_dict()) == str(stop.state_dict())
    assert_same_weights(net, again)


def test_bad_input(tmp_path):
    probe = samples(0).tensors
    for change, text in [
        ({"every": 0}, r"'every' argument.*Got 0"),
        ({"measures": "relative.kapa"}, r"Did you mean 'relative\.kappa'"),
        ({"max_overhead": 1.0}, r"Got 1\.0"),
        ({"los": "mse"}, r"has an argument 'los'"),
    ]:
        with pytest.raises(sl.SpiritlevelError, match=text):
            FlatnessMonitorCallback(probe, **change)
    with pytest.raises(sl.SpiritlevelError, match=r"Got an empty loader"):
        fit(Net(), [FlatnessMonitorCallback([])], tmp_path)
    with pytest.raises(sl.SpiritlevelError, match=r"'both' needs the validation loss 'val_loss'"):
        fit(Net(), [FlatnessStoppingCallback("both")], tmp_path, validation=False)
    with pytest.raises(sl.SpiritlevelError, match=r"needs 'flatness/relative\.kappa'.*val_loss"):
        fit(Net(), [FlatnessStoppingCallback("flatness")], tmp_path)
    with pytest.raises(sl.SpiritlevelError, match=r"needs 'valid_loss'.*self\.log\('valid_loss'"):
        fit(Net(), [FlatnessStoppingCallback("loss", monitor="valid_loss")], tmp_path)


def test_sam_steps_as_in_a_plain_loop(tmp_path):
    def make(parameters):
        return SAM(torch.optim.SGD(parameters, lr=0.1, momentum=0.9), rho=0.05)

    net, plain = Net(make, dropout=0.0), Net(make, dropout=0.0)
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
    assert_same_weights(plain, net)


def test_sam_refuses_summed_batches(tmp_path):
    net = Net(lambda parameters: SAM(torch.optim.SGD(parameters, lr=0.1), rho=0.05))
    with pytest.raises(sl.SpiritlevelError, match="set accumulate_grad_batches=1"):
        fit(net, [], tmp_path, epochs=1, accumulate_grad_batches=2)


def test_frameworks_are_loaded_only_when_asked_for():
    code = """
import sys
sys.modules.update({"lightning": None, "transformers": None})
import spiritlevel.training, spiritlevel.training.integrations
for name in ("lightning", "transformers"):
    try:
        __import__(f"spiritlevel.training.integrations.{name}")
    except ImportError as error:
        print(error)
"""
    done = fresh.run("-c", code)
    assert done.stdout.splitlines() == [
        "The Lightning callback needs lightning: pip install 'spiritlevel[lightning]'",
        "The Trainer callback needs transformers: pip install 'spiritlevel[transformers]'",
    ], done.stderr


def test_the_learning_rate_is_watched(tmp_path):
    plain, watched = Net(), Net()
    fit(plain, [], tmp_path)
    callback = FlatnessMonitorCallback(
        samples(0).tensors, measures=(), optimizer=True, every=2, warn_above=1e-3
    )
    logger = CSVLogger(tmp_path)
    with pytest.warns(RuntimeWarning, match=r"edge of stability 38 of SGD at learning rate 0\.1"):
        trainer = fit(watched, [callback], tmp_path, logger=logger)
    assert_same_weights(plain, watched)
    assert [row["step"] for row in callback.rows] == [2, 4, 6, 8]
    assert all(row["rate.threshold"] == pytest.approx(38.0) for row in callback.rows)
    assert sum("warning" in row for row in callback.rows) == 1
    last = callback.rows[-1]
    logged = trainer.callback_metrics
    for name in ("rate.sharpness", "rate.critical_sharpness"):
        assert float(logged[f"flatness/{name}"]) == pytest.approx(last[name], rel=1e-6)
    report = sl.eigenvalues(watched.eval(), samples(0).tensors)
    assert last["rate.sharpness"] != report.values[0]  # of step 8 of 9
    with open(f"{logger.log_dir}/metrics.csv") as file:
        assert sum(bool(row.get("flatness/rate.sharpness")) for row in csv.DictReader(file)) == 4


def test_the_learning_rate_of_one_of_two_optimizers_is_refused(tmp_path):
    class Two(Net):
        automatic_optimization = False

        def configure_optimizers(self):
            return [torch.optim.SGD(part.parameters(), 0.1) for part in (self.net[0], self.net[4])]

        def training_step(self, batch, index):
            return None

    callback = FlatnessMonitorCallback(samples(0).tensors, measures=(), optimizer=True)
    with pytest.raises(
        sl.SpiritlevelError, match=r"one optimizer\. configure_optimizers returned 2"
    ):
        fit(Two(), [callback], tmp_path)
