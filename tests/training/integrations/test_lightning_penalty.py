"""Penalties in real runs of Lightning's Trainer: equal to a plain loop, resumed, refused."""

import csv
import warnings

import pytest
import torch
from torch.nn import functional as F

import spiritlevel as sl
from spiritlevel.training import FlatnessPenalty, KappaPenalty
from spiritlevel.training.sam.optimizers import SAM

lightning = pytest.importorskip("lightning.pytorch")
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402
from lightning.pytorch.loggers import CSVLogger  # noqa: E402
from lightning.pytorch.plugins import MixedPrecision  # noqa: E402

from spiritlevel.training.integrations.lightning import FlatnessPenaltyCallback  # noqa: E402
from training.integrations.lightning_runs import Net, Recorder, assert_same_weights, fit  # noqa: E402

SETTINGS = {"weight": 0.5, "every": 2, "probes": 2}


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice on workers and loggers
        yield


def seeded():
    return torch.Generator().manual_seed(7)


def plain_loop(net, batches, *, accumulate=1):
    """The same training without Lightning; what the penalty measured, batch by batch."""
    penalty = FlatnessPenalty(net, **SETTINGS, generator=seeded())
    optimizer = net.configure_optimizers()
    net.train()
    values = []
    for index, (x, y) in enumerate(batches):
        torch.manual_seed(index + 1)  # as the recorder does
        with penalty.shared_forward():
            loss = F.cross_entropy(net(x), y)
        ((loss + penalty.of(loss, len(x))) / accumulate).backward()
        values.append(float(penalty.value))
        in_epoch = index % 3 + 1  # of three batches
        if in_epoch % accumulate == 0 or in_epoch == 3:
            optimizer.step()
            optimizer.zero_grad()
    return values


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_callback_trains_as_a_plain_loop_to_the_last_bit(tmp_path, accumulate):
    unchanged, net, plain = Net(), Net(), Net()
    batches, logger = [], CSVLogger(tmp_path)
    callback = FlatnessPenaltyCallback(**SETTINGS, generator=seeded(), prog_bar=True)
    trainer = fit(
        net,
        [Recorder(batches), callback],
        tmp_path,
        accumulate_grad_batches=accumulate,
        logger=logger,
        log_every_n_steps=1,
    )
    assert len(batches) == 9
    values = plain_loop(plain, batches, accumulate=accumulate)
    assert_same_weights(plain, net)
    fit(unchanged, [Recorder([])], tmp_path, accumulate_grad_batches=accumulate)
    assert not torch.equal(unchanged.net[0].weight, net.net[0].weight)
    assert float(trainer.callback_metrics["flatness_penalty"]) == values[-1]
    assert "flatness_penalty" in trainer.progress_bar_metrics
    with open(f"{logger.log_dir}/metrics.csv") as file:
        rows = [row for row in csv.DictReader(file) if row.get("flatness_penalty")]
    steps = [n for n in range(9) if n % 3 == 2 or n % 3 % accumulate == accumulate - 1]
    assert [float(row["flatness_penalty"]) for row in rows] == pytest.approx(
        [values[n] for n in steps], rel=1e-6
    )


def test_a_part_of_the_module_and_a_batch_size_of_ones_own(tmp_path):
    net, plain = Net(), Net()
    options = {"weight": 0.5, "layers": "4"}
    callback = FlatnessPenaltyCallback(
        **options, generator=seeded(), module="net", batch_size=lambda batch: len(batch[0]) // 2
    )
    batches = []
    fit(net, [Recorder(batches), callback], tmp_path, epochs=1)
    penalty = FlatnessPenalty(plain.net, **options, generator=seeded())
    optimizer = plain.configure_optimizers()
    plain.train()
    for index, (x, y) in enumerate(batches):
        torch.manual_seed(index + 1)
        with penalty.shared_forward():
            loss = F.cross_entropy(plain(x), y)
        (loss + penalty.of(loss, 4)).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert_same_weights(plain, net)


# -- resuming ----------------------------------------------------------------------------------


class WithKappa(Net):
    """A penalty on the outputs, and the two hooks that keep its state."""

    def __init__(self, **options):
        super().__init__(**options)
        self.penalty = KappaPenalty(self.net, "4", weight=0.5, every=4, generator=seeded())

    def training_step(self, batch, index):
        outputs = self(batch[0])
        return F.cross_entropy(outputs, batch[1]) + self.penalty(outputs, batch[1])

    def on_save_checkpoint(self, checkpoint):
        checkpoint["penalty"] = self.penalty.state_dict()

    def on_load_checkpoint(self, checkpoint):
        self.penalty.load_state_dict(checkpoint["penalty"])


@pytest.mark.parametrize("kind", ["callback", "training_step"])
def test_a_resumed_penalty_goes_on_where_it_was(tmp_path, kind):
    def run(*more, **options):
        net, callbacks = WithKappa(dropout=0.0), []
        if kind == "callback":
            net = Net(dropout=0.0)  # Lightning keeps no random state
            callbacks = [FlatnessPenaltyCallback(0.5, every=4, generator=seeded())]
        fit(net, [*callbacks, *more], tmp_path, shuffle=False, **({"epochs": 4} | options))
        return net, (callbacks[0].penalty if callbacks else net.penalty).state_dict()

    straight, end = run()
    saved = ModelCheckpoint(tmp_path, filename="half")
    run(saved, epochs=2, enable_checkpointing=True)
    resumed, state = run(resume=tmp_path / "half.ckpt")  # after 6 steps, 2 before the next penalty
    assert_same_weights(straight, resumed)
    assert state["steps"] == end["steps"] == 12
    assert torch.equal(state["generator"], end["generator"])
    # without its state the penalty would come at other steps: the comparison can tell
    kept = torch.load(tmp_path / "half.ckpt", weights_only=True)
    kept["callbacks"].pop("FlatnessPenaltyCallback", None)
    if kind == "training_step":
        kept["penalty"] = KappaPenalty(Net().net, "4", generator=seeded()).state_dict()
    torch.save(kept, tmp_path / "bare.ckpt")
    anew, _ = run(resume=tmp_path / "bare.ckpt")
    assert not torch.equal(anew.net[0].weight, straight.net[0].weight)


def test_the_state_before_training_is_that_of_the_checkpoint():
    callback = FlatnessPenaltyCallback(every=4)
    assert callback.state_dict() == {}
    callback.load_state_dict({"steps": 3})
    assert callback.state_dict() == {"steps": 3}


# -- what is left behind -----------------------------------------------------------------------


def substituted():
    """Whether torch's functions are still replaced by those that a penalty differentiates."""
    return torch.relu(torch.ones(2, requires_grad=True)).grad_fn.name() != "ReluBackward0"


class Eager(Net):
    """Does something unusual at the second batch of an epoch."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.during, self.after = kind, [], []

    def on_train_batch_start(self, batch, index):
        return -1 if self.kind == "give_up" and index == 1 else None

    def training_step(self, batch, index):
        self.during.append(substituted())
        if index == 1 and self.kind == "fail":
            raise ValueError("broken")
        if index == 1 and self.kind == "skip":
            return None
        return super().training_step(batch, index)

    def on_train_batch_end(self, *args):  # Lightning asks the callbacks first
        self.after.append(substituted())

    def on_train_epoch_end(self):
        self.after.append(substituted())


@pytest.mark.parametrize(("kind", "calls"), [("skip", 4), ("give_up", 2), ("fail", 1)])
def test_torch_is_left_as_it_was(tmp_path, kind, calls):
    net, callback = Eager(kind), FlatnessPenaltyCallback()
    if kind == "fail":
        with pytest.raises(ValueError, match="broken"):
            fit(net, [callback], tmp_path, epochs=2)
    else:
        fit(net, [callback], tmp_path, epochs=2)
    assert net.after
    assert not any(net.after)
    assert not substituted()
    assert all(net.during)  # and the penalty had what it needs in every step
    assert callback.penalty.state_dict()["steps"] == calls


# -- bad input ---------------------------------------------------------------------------------


class Manual(Net):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


def test_bad_arguments():
    for options, text in [
        ({"weight": -1.0}, r"'weight' .* Got -1\.0"),
        ({"every": 0}, r"'every' .* Got 0"),
        ({"probes": 0}, r"'probes' .* Got 0"),
    ]:
        with pytest.raises(sl.SpiritlevelError, match=text):
            FlatnessPenaltyCallback(**options)


@pytest.mark.parametrize(
    ("net", "options", "text"),
    [
        (Manual, {}, r"automatic_optimization=False.*shared_forward"),
        (lambda: Net(lambda p: SAM(torch.optim.SGD(p, 0.1))), {}, r"one backward a step\. Got SAM"),
        (lambda: Net(torch.optim.LBFGS), {}, r"one backward a step\. Got LBFGS"),
        (
            Net,
            {"plugins": MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))},
            r"not scaled\. Got precision='16-mixed'.*bf16-mixed",
        ),
    ],
    ids=["manual", "sam", "lbfgs", "scaled"],
)
def test_runs_that_are_refused_before_the_first_batch(tmp_path, net, options, text):
    module = net()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(sl.SpiritlevelError, match=text):
        fit(module, [FlatnessPenaltyCallback()], tmp_path, num_sanity_val_steps=0, **options)
    for name, value in before.items():
        assert torch.equal(value, module.state_dict()[name]), name


class Twice(torch.optim.SGD):
    """Takes two backwards a step, and nobody can know that before."""

    def step(self, closure=None):
        closure()
        return super().step(closure)


def test_a_second_backward_is_refused(tmp_path):
    with pytest.raises(sl.SpiritlevelError, match=r"one backward a batch\. Got a second"):
        fit(Net(lambda p: Twice(p, lr=0.1)), [FlatnessPenaltyCallback()], tmp_path)
    assert not substituted()


def test_a_loss_that_is_not_finite(tmp_path):
    net = Net()
    with torch.no_grad():
        net.net[4].weight[0, 0] = float("nan")
    with pytest.raises(sl.SpiritlevelError, match=r"must be finite\. Got nan"):
        fit(net, [FlatnessPenaltyCallback()], tmp_path, validation=False)
    assert all(p.grad is None for p in net.parameters())
    assert not substituted()
