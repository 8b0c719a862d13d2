"""The wrappers are optimizers: to schedulers, checkpoints, hooks, GradScaler and frameworks."""

import copy
import pickle

import pytest
import torch
from torch import nn

from spiritlevel import SpiritlevelError
from spiritlevel.training.sam.optimizers import ASAM, SAM, NoiseSAM
from training.sam.sam_problem import (
    KINDS,
    RHO,
    batch,
    by_closure,
    by_passes,
    loss_of,
    network,
    weights_of,
)

SGD = {"lr": 0.1, "momentum": 0.9}


def test_groups_state_and_defaults_are_those_of_the_base():
    net, (x, y) = network(), batch()
    base = torch.optim.Adam(net.parameters())
    optimizer = SAM(base)
    assert isinstance(optimizer, torch.optim.Optimizer)
    by_closure(optimizer, net, x, y)
    assert optimizer.param_groups is base.param_groups
    assert optimizer.state is base.state
    assert len(optimizer.state) == 4
    assert optimizer.defaults is base.defaults
    optimizer.zero_grad()
    assert all(weight.grad is None for weight in net.parameters())
    assert repr(optimizer).startswith("SAM (")
    assert "rho: 0.05" in repr(optimizer)


def test_added_groups():
    net = network()
    base = torch.optim.SGD(net[0].parameters(), **SGD)
    optimizer = SAM(base, 0.2)
    optimizer.add_param_group({"params": [net[2].weight]})
    optimizer.add_param_group({"params": [net[2].bias], "rho": 0.7, "lr": 0.5})
    assert [group["rho"] for group in base.param_groups] == [0.2, 0.2, 0.7]
    assert [group["lr"] for group in base.param_groups] == [0.1, 0.1, 0.5]


def test_schedulers_set_the_rate_of_the_base():
    net, (x, y) = network(), batch()
    base = torch.optim.SGD(net.parameters(), **SGD)
    optimizer = SAM(base, RHO)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1)
    for number in range(3):
        assert base.param_groups[0]["lr"] == pytest.approx(0.1 ** (number + 1))
        before = weights_of(net)
        base.state.clear()  # no momentum: the step is lr times the gradient
        by_closure(optimizer, net, x, y)
        for name, weight in net.named_parameters():
            expected = before[name] - 0.1 ** (number + 1) * weight.grad
            torch.testing.assert_close(weight.detach(), expected, rtol=1e-13, atol=1e-16)
        scheduler.step()


def test_radius_may_be_scheduled():
    net, (x, y) = network(), batch()
    optimizer = SAM(torch.optim.SGD(net.parameters(), **SGD), 0.0)
    assert not optimizer.due
    optimizer.param_groups[0]["rho"] = RHO
    loss_of(net, x, y).backward()
    before = weights_of(net)
    with optimizer.perturbed():
        moved = [weight.detach() - before[name] for name, weight in net.named_parameters()]
        loss_of(net, x, y).backward()
    assert sum(float(m.square().sum()) for m in moved) ** 0.5 == pytest.approx(RHO, rel=1e-12)


MAKE = {
    "sam": lambda base: SAM(base, RHO, every=3),
    "asam": lambda base: ASAM(base, RHO, adaptive_bias=False, every=3),
    "noise": lambda base: NoiseSAM(
        base, RHO, draws=2, every=3, generator=torch.Generator().manual_seed(0)
    ),
}


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("base", [torch.optim.AdamW, torch.optim.SGD])
def test_resumed_training_is_bit_identical(kind, base, tmp_path):
    options = SGD if base is torch.optim.SGD else {"lr": 0.01}
    net, (x, y) = network(), batch()
    optimizer = MAKE[kind](base(net.parameters(), **options))
    for _ in range(4):  # the next one that is perturbed is number 6
        by_closure(optimizer, net, x, y)
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "saved")
    for _ in range(5):
        by_closure(optimizer, net, x, y)

    saved = torch.load(tmp_path / "saved", weights_only=True)
    other = network()
    resumed = MAKE[kind](base(other.parameters(), **options))
    other.load_state_dict(saved["net"])
    resumed.load_state_dict(saved["optimizer"])
    due = []
    for _ in range(5):
        due.append(resumed.due)
        by_closure(resumed, other, x, y)
    assert due == [False, False, True, False, False]
    for one, two in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


def test_state_of_the_plain_optimizer_loads_and_the_other_way_round():
    net, (x, y) = network(), batch()
    plain = torch.optim.SGD(net.parameters(), **SGD)
    loss_of(net, x, y).backward()
    plain.step()
    optimizer = SAM(torch.optim.SGD(net.parameters(), lr=0.7), RHO)
    optimizer.load_state_dict(plain.state_dict())
    assert optimizer.param_groups[0]["rho"] == RHO
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert optimizer.due
    by_closure(optimizer, net, x, y)
    plain.load_state_dict(optimizer.state_dict())
    assert torch.equal(
        plain.state[net[0].weight]["momentum_buffer"],
        optimizer.state[net[0].weight]["momentum_buffer"],
    )


def test_a_state_with_a_bad_radius_is_refused_before_anything_changes():
    net = network()
    optimizer = SAM(torch.optim.SGD(net.parameters(), **SGD), RHO)
    state = optimizer.state_dict()
    state["param_groups"][0].update(rho=-3.0, lr=9.0)
    with pytest.raises(SpiritlevelError, match=r"Got -3\.0"):
        optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_hooks():
    net, (x, y) = network(), batch()
    optimizer = SAM(torch.optim.SGD(net.parameters(), **SGD))
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    optimizer.register_state_dict_post_hook(lambda *_: seen.append("saved"))
    optimizer.register_load_state_dict_pre_hook(lambda *_: seen.append("loading"))
    by_closure(optimizer, net, x, y)
    by_passes(optimizer, net, x, y)
    optimizer.load_state_dict(optimizer.state_dict())
    assert seen == ["before", "after"] * 2 + ["saved", "loading"]


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
@pytest.mark.parametrize("kind", KINDS)
def test_copies_go_their_own_way(kind, duplicate):
    net, (x, y) = network(), batch()
    optimizer = KINDS[kind][0](torch.optim.SGD(net.parameters(), **SGD))
    torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    by_closure(optimizer, net, x, y)
    other, twin = duplicate((net, optimizer))
    assert twin.param_groups[0]["params"][0] is other[0].weight
    by_closure(optimizer, net, x, y)
    assert not torch.equal(other[0].weight, net[0].weight)
    by_closure(twin, other, x, y)
    assert torch.equal(other[0].weight, net[0].weight)


# Mixed precision


def scaled_step(optimizer, scaler, net, x, y, spoil=None):
    """One step; `spoil` names the pass whose gradient gets an infinity."""
    for number, _ in enumerate(optimizer.passes()):
        optimizer.zero_grad()
        scaler.scale(loss_of(net, x, y)).backward()
        if number == spoil:
            net[0].weight.grad[0, 0] = float("inf")
    scaler.step(optimizer)
    scaler.update()


@pytest.mark.parametrize("kind", ["sam", "asam", "noise"])
@pytest.mark.parametrize("fused", [False, True])
def test_scaled_gradients_give_the_same_step(kind, fused):
    """The scale is a power of two and drops out of the direction: the same to the last bit."""
    net, other, (x, y) = network(), network(), batch()
    make = KINDS[kind][0]
    optimizer = make(torch.optim.AdamW(net.parameters(), lr=0.1, fused=fused))
    plain = make(torch.optim.AdamW(other.parameters(), lr=0.1, fused=fused))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    for _ in range(3):
        scaled_step(optimizer, scaler, net, x, y)
        by_passes(plain, other, x, y)
    for one, two in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize(("kind", "spoil"), [("sam", 0), ("sam", 1), ("asam", 0), ("noise", 1)])
def test_overflow_in_any_pass_skips_the_step(kind, spoil):
    net, (x, y) = network(), batch()
    optimizer = KINDS[kind][0](torch.optim.SGD(net.parameters(), **SGD))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    before = weights_of(net)
    scaled_step(optimizer, scaler, net, x, y, spoil=spoil)
    for name, weight in net.named_parameters():
        assert torch.equal(weight, before[name])
    assert scaler.get_scale() == 2.0**15
    assert optimizer.param_groups[0]["steps_taken"] == 0
    scaled_step(optimizer, scaler, net, x, y)
    assert optimizer.param_groups[0]["steps_taken"] == 1
    assert all(torch.isfinite(weight).all() for weight in net.parameters())
    assert not torch.equal(net[0].weight, before["0.weight"])


def test_overflow_shows_even_if_the_second_pass_hides_it():
    """The gradient of a linear loss does not depend on the weights, displaced or NaN."""
    weight = nn.Parameter(torch.ones(3))
    optimizer = SAM(torch.optim.SGD([weight], lr=0.1))
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(weight.sum()).backward()
    weight.grad[1] = float("inf")
    with optimizer.perturbed():
        scaler.scale(weight.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [1.0, 1.0, 1.0]


def test_clipping_sees_the_second_gradient_unscaled():
    net, (x, y) = network(), batch()
    optimizer = SAM(torch.optim.SGD(net.parameters(), lr=1.0), RHO)
    scaler = torch.amp.GradScaler("cpu")
    before = weights_of(net)
    for _ in optimizer.passes():
        scaler.scale(loss_of(net, x, y)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
    scaler.step(optimizer)
    moved = [weight.detach() - before[name] for name, weight in net.named_parameters()]
    assert sum(float(m.square().sum()) for m in moved) ** 0.5 == pytest.approx(1e-3, rel=1e-2)


def test_autocast_does_not_use_copies_of_the_old_weights():
    """One autocast block around both passes keeps casts of the weights; they must not survive."""
    torch.manual_seed(0)
    layer, x = nn.Linear(8, 4), torch.randn(16, 8)

    def loss():
        return layer(x).float().square().mean()

    optimizer = SAM(torch.optim.SGD(layer.parameters(), lr=0.0), rho=5.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first = loss()
        first.backward()
        with optimizer.perturbed():
            second = loss()
            second.backward()
        third = loss()
    assert second.item() > 1.5 * first.item()
    assert third.item() == first.item()


# Frameworks


def lightning_module(manual, **options):
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network().float()
            self.automatic_optimization = not manual

        def training_step(self, data, _):
            if not manual:
                return loss_of(self.net, *data)
            optimizer = self.optimizers()
            for _ in optimizer.passes():
                optimizer.zero_grad()
                self.manual_backward(loss_of(self.net, *data))
            optimizer.step()

        def configure_optimizers(self):
            return SAM(torch.optim.SGD(self.net.parameters(), **SGD), RHO, **options)

    return Module()


@pytest.mark.parametrize("manual", [False, True])
def test_lightning(manual, tmp_path):
    lightning = pytest.importorskip("lightning")
    x, y = batch()
    data = torch.utils.data.DataLoader([(x.float(), y)] * 5, batch_size=None)
    module = lightning_module(manual, every=2)
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(module, data)
    net = network().float()
    optimizer = SAM(torch.optim.SGD(net.parameters(), **SGD), RHO, every=2)
    for _ in range(5):
        by_closure(optimizer, net, x.float(), y)
    for one, two in zip(module.net.parameters(), net.parameters(), strict=True):
        assert torch.equal(one, two)
    assert trainer.optimizers[0].param_groups[0]["steps_taken"] == 5


def test_accelerate():
    accelerate = pytest.importorskip("accelerate")
    # What a trainer of an earlier test accumulated last is kept for the whole process, and a
    # prepared optimizer waits for the end of it.
    accelerate.state.GradientState._reset_state()
    net, other, (x, y) = network(), network(), batch()
    plain = SAM(torch.optim.SGD(other.parameters(), **SGD), RHO)
    prepared = accelerate.Accelerator(cpu=True).prepare(
        SAM(torch.optim.SGD(net.parameters(), **SGD), RHO)
    )
    for _ in range(3):
        by_closure(prepared, net, x, y)
        by_closure(plain, other, x, y)
    for one, two in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
