"""Every penalty in real runs of Lightning's Trainer: equal to a plain loop, resumed, refused."""

import csv
import warnings

import pytest
import torch
from torch.nn import functional as F

import spiritlevel as sl
from spiritlevel.training import FlatnessPenalty, HeadPenalty, KappaPenalty
from spiritlevel.training.sam.optimizers import SAM
from training.penalties.penalty_zoo import PENALTIES, make_penalty

pytestmark = pytest.mark.sampled(2)  # the others at night

lightning = pytest.importorskip("lightning.pytorch")
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402
from lightning.pytorch.loggers import CSVLogger  # noqa: E402
from lightning.pytorch.plugins import MixedPrecision  # noqa: E402

from spiritlevel.training.integrations.lightning import PenaltyCallback  # noqa: E402
from training.integrations.lightning_runs import Net, Recorder, assert_same_weights, fit  # noqa: E402


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice on workers and loggers
        yield


def seeded():
    return torch.Generator().manual_seed(7)


def penalty_of(name, net, **options):
    options = {"weight": 0.5, "every": 2} | options
    return make_penalty(name, net, layer="net.0", generator=seeded(), **options)


def plain_loop(net, penalty, batches, *, accumulate=1):
    """The same training without Lightning; what the penalty measured, batch by batch."""
    optimizer = net.configure_optimizers()
    net.train()
    values = []
    for index, (x, y) in enumerate(batches):
        torch.manual_seed(index + 1)  # as the recorder does
        with penalty.shared_forward():
            loss = F.cross_entropy(net(x), y)
        ((loss + penalty(x, y, loss=loss)) / accumulate).backward()
        values.append(float(penalty.value))
        in_epoch = index % 3 + 1  # of three batches
        if in_epoch % accumulate == 0 or in_epoch == 3:
            optimizer.step()
            optimizer.zero_grad()
    return values


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "accumulate"), [*((name, 1) for name in PENALTIES), ("trace_squared", 2), ("own", 2)]
)
def test_the_callback_trains_as_a_plain_loop_to_the_last_bit(tmp_path, name, accumulate):
    unchanged, net, plain = Net(), Net(), Net()
    batches, logger = [], CSVLogger(tmp_path)
    callback = PenaltyCallback(penalty_of(name, net), prog_bar=True)
    trainer = fit(
        net,
        [Recorder(batches), callback],
        tmp_path,
        accumulate_grad_batches=accumulate,
        logger=logger,
        log_every_n_steps=1,
    )
    assert len(batches) == 9
    values = plain_loop(plain, penalty_of(name, plain), batches, accumulate=accumulate)
    assert_same_weights(plain, net)
    fit(unchanged, [Recorder([])], tmp_path, accumulate_grad_batches=accumulate)
    assert not torch.equal(unchanged.net[0].weight, net.net[0].weight)
    assert float(trainer.callback_metrics["penalty"]) == values[-1]
    assert "penalty" in trainer.progress_bar_metrics
    with open(f"{logger.log_dir}/metrics.csv") as file:
        rows = [row for row in csv.DictReader(file) if row.get("penalty")]
    steps = [n for n in range(9) if n % 3 == 2 or n % 3 % accumulate == accumulate - 1]
    assert [float(row["penalty"]) for row in rows] == pytest.approx(
        [values[n] for n in steps], rel=1e-6
    )


def test_a_part_of_the_module_and_a_batch_size_of_ones_own(tmp_path):
    net, plain = Net(), Net()
    options = {"weight": 0.5, "layers": "4"}
    penalty = FlatnessPenalty(net.net, **options, generator=seeded())
    callback = PenaltyCallback(penalty, batch_size=lambda batch: len(batch[0]) // 2)
    batches = []
    fit(net, [Recorder(batches), callback], tmp_path, epochs=1)
    penalty = FlatnessPenalty(plain.net, **options, generator=seeded())
    optimizer = plain.configure_optimizers()
    plain.train()
    for index, (x, y) in enumerate(batches):
        torch.manual_seed(index + 1)
        with penalty.shared_forward():
            loss = F.cross_entropy(plain(x), y)
        (loss + penalty(x, y, loss=loss, batch_size=4)).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert_same_weights(plain, net)


class Dicts(Net):
    """Takes other batches than pairs of inputs and targets."""

    def __init__(self, split):
        super().__init__()
        self.split = split

    def on_after_batch_transfer(self, batch, index):
        x, y = batch
        return self.split(x, y)

    def training_step(self, batch, index):
        x, y = batch.values() if isinstance(batch, dict) else (batch[0], batch[2])
        return F.cross_entropy(self(x), y)


@pytest.mark.parametrize("kind", ["dict", "triple"])
def test_other_batches(tmp_path, kind):
    forms = {"dict": lambda x, y: {"x": x, "labels": y}, "triple": lambda x, y: (x, 0, y)}
    net, plain = Dicts(forms[kind]), Net()
    split = None if kind == "dict" else lambda batch: (batch[0], batch[2])
    callback = PenaltyCallback(penalty_of("head_kappa", net), split=split)
    fit(net, [callback], tmp_path, epochs=1, validation=False)
    fit(plain, [PenaltyCallback(penalty_of("head_kappa", plain))], tmp_path, epochs=1)
    assert_same_weights(plain, net)


def test_targets_that_are_not_known_are_asked_for(tmp_path):
    net = Dicts(lambda x, y: (x, 0, y))
    callback = PenaltyCallback(HeadPenalty(net))
    with pytest.raises(sl.SpiritlevelError, match=r"needs the targets of the batch"):
        fit(net, [callback], tmp_path, validation=False)


class Late(Net):
    """Builds its layers when the Trainer asks for them."""

    def __init__(self):
        super().__init__()
        self.later, self.net = self.net, None

    def configure_model(self):
        self.net = self.net or self.later


def test_a_penalty_that_is_made_at_the_start_of_training(tmp_path):
    net, plain = Late(), Net()
    callback = PenaltyCallback(lambda module: penalty_of("kappa", module))
    fit(net, [callback], tmp_path, epochs=1)
    assert callback.penalty.model is net
    fit(plain, [PenaltyCallback(penalty_of("kappa", plain))], tmp_path, epochs=1)
    assert torch.equal(plain.net[0].weight, net.net[0].weight)


# -- resuming ----------------------------------------------------------------------------------


class WithKappa(Net):
    """A penalty in training_step, and the two hooks that keep its state."""

    def __init__(self, **options):
        super().__init__(**options)
        self.penalty = KappaPenalty(self.net, 0.5, layer="4", every=4, generator=seeded())

    def training_step(self, batch, index):
        x, y = batch
        with self.penalty.shared_forward():
            loss = F.cross_entropy(self(x), y)
        return loss + self.penalty(x, y, loss=loss)

    def on_save_checkpoint(self, checkpoint):
        checkpoint["penalty"] = self.penalty.state_dict()

    def on_load_checkpoint(self, checkpoint):
        self.penalty.load_state_dict(checkpoint["penalty"])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [*PENALTIES, "made later", "training_step"])
def test_a_resumed_penalty_goes_on_where_it_was(tmp_path, kind):
    def run(*more, **options):
        net, callbacks = WithKappa(dropout=0.0), []
        if kind != "training_step":
            net = Net(dropout=0.0)  # Lightning keeps no random state
            penalty = penalty_of(kind if kind in PENALTIES else "own", net, every=4)
            callbacks = [PenaltyCallback(penalty if kind in PENALTIES else lambda _: penalty)]
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
    kept["callbacks"].pop("PenaltyCallback", None)
    if kind == "training_step":
        kept["penalty"] = KappaPenalty(Net().net, layer="4", generator=seeded()).state_dict()
    torch.save(kept, tmp_path / "bare.ckpt")
    anew, _ = run(resume=tmp_path / "bare.ckpt")
    assert not torch.equal(anew.net[0].weight, straight.net[0].weight)


def test_the_state_before_training_is_that_of_the_checkpoint():
    callback = PenaltyCallback(lambda module: FlatnessPenalty(module))
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
    net = Eager(kind)
    callback = PenaltyCallback(FlatnessPenalty(net))
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


def test_bad_arguments(tmp_path):
    for wrong, text in [
        (0.01, r"'penalty' argument .* must be a Penalty.* Got 0\.01"),
        (FlatnessPenalty, r"must be a Penalty.* Got <class"),
    ]:
        with pytest.raises(sl.SpiritlevelError, match=text):
            PenaltyCallback(wrong)
    with pytest.raises(sl.SpiritlevelError, match=r"must return a Penalty\. Got Net"):
        fit(Net(), [PenaltyCallback(lambda module: module)], tmp_path)
    other = PenaltyCallback(FlatnessPenalty(Net()))
    with pytest.raises(sl.SpiritlevelError, match=r"Got a Net that Net does not contain"):
        fit(Net(), [other], tmp_path)


@pytest.mark.parametrize(
    ("net", "options", "text"),
    [
        (Manual, {}, r"automatic_optimization=False.*shared_forward"),
        (
            lambda: Net(lambda p: SAM(torch.optim.SGD(p, 0.1))),
            {},
            r"one backward pass per step\. Got SAM",
        ),
        (lambda: Net(torch.optim.LBFGS), {}, r"one backward pass per step\. Got LBFGS"),
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
    callback = PenaltyCallback(FlatnessPenalty(module))
    with pytest.raises(sl.SpiritlevelError, match=text):
        fit(module, [callback], tmp_path, num_sanity_val_steps=0, **options)
    for name, value in before.items():
        assert torch.equal(value, module.state_dict()[name]), name


class Twice(torch.optim.SGD):
    """Takes two backwards a step, and nobody can know that before."""

    def step(self, closure=None):
        closure()
        return super().step(closure)


def test_a_second_backward_is_refused(tmp_path):
    net = Net(lambda p: Twice(p, lr=0.1))
    with pytest.raises(sl.SpiritlevelError, match=r"one backward pass per batch\. Got a second"):
        fit(net, [PenaltyCallback(FlatnessPenalty(net))], tmp_path)
    assert not substituted()


def test_a_loss_that_is_not_finite(tmp_path):
    net = Net()
    with torch.no_grad():
        net.net[4].weight[0, 0] = float("nan")
    with pytest.raises(sl.SpiritlevelError, match=r"must be finite\. Got nan"):
        fit(net, [PenaltyCallback(FlatnessPenalty(net))], tmp_path, validation=False)
    assert all(p.grad is None for p in net.parameters())
    assert not substituted()
