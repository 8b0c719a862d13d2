"""Passes counted, weights put back, misuse refused."""

import pytest
import torch
from torch import nn

from spiritlevel import SpiritlevelError
from spiritlevel.training.sam.optimizers import ASAM, SAM, NoiseSAM, build_perturbed
from training.sam.sam_problem import (
    KINDS,
    RHO,
    batch,
    by_blocks,
    by_closure,
    by_passes,
    loss_of,
    network,
    weights_of,
)

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")


def counted(net):
    counts = {"forward": 0, "backward": 0}

    def forward(*_):
        counts["forward"] += 1

    def backward(*_):
        counts["backward"] += 1

    net.register_forward_hook(forward)
    net.register_full_backward_hook(backward)
    return counts


@pytest.mark.parametrize("use", [by_closure, by_passes, by_blocks])
@pytest.mark.parametrize(
    ("kind", "passes"), [("sam", 2), ("asam", 2), ("noise", 3), ("noise_once", 1)]
)
def test_number_of_passes(kind, passes, use):
    net, (x, y) = network(), batch()
    counts = counted(net)
    use(KINDS[kind][0](torch.optim.SGD(net.parameters(), lr=1.0)), net, x, y)
    assert counts == {"forward": passes, "backward": passes}


@pytest.mark.parametrize("use", [by_closure, by_passes])
def test_plain_steps_and_radius_zero_cost_one_pass(use):
    net, (x, y) = network(), batch()
    counts = counted(net)
    use(SAM(torch.optim.SGD(net.parameters(), lr=1.0), rho=0), net, x, y)
    assert counts == {"forward": 1, "backward": 1}


def test_closure_returns_the_loss_at_the_weights():
    net, (x, y) = network(), batch()
    expected = loss_of(net, x, y).item()
    optimizer = SAM(torch.optim.SGD(net.parameters(), lr=1.0), RHO)
    assert by_closure(optimizer, net, x, y).item() == expected


def test_noise_returns_the_mean_loss_over_draws():
    net, (x, y) = network(), batch()
    optimizer = KINDS["noise"][0](torch.optim.SGD(net.parameters(), lr=1.0))
    losses = []

    def closure():
        optimizer.zero_grad()
        losses.append(loss_of(net, x, y))
        losses[-1].backward()
        return losses[-1]

    found = optimizer.step(closure).item()
    assert found == pytest.approx(sum(loss.item() for loss in losses) / 3, rel=1e-15)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("use", [by_closure, by_passes, by_blocks])
def test_weights_are_back_after_an_error(kind, use, monkeypatch):
    net, (x, y) = network(), batch()
    optimizer = KINDS[kind][0](torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.9))
    before, calls = weights_of(net), []
    backward = torch.Tensor.backward

    def broken(tensor, *args, **kwargs):
        backward(tensor, *args, **kwargs)
        displaced = not torch.equal(net[0].weight, before["0.weight"])
        calls.append(displaced)
        if displaced:
            raise RuntimeError("out of memory")

    monkeypatch.setattr(torch.Tensor, "backward", broken)
    with pytest.raises(RuntimeError, match="out of memory"):
        use(optimizer, net, x, y)
    assert calls[-1]
    for name, weight in net.named_parameters():
        assert torch.equal(weight, before[name])
    monkeypatch.undo()
    with pytest.raises(SpiritlevelError, match=r"none was computed since the last step"):
        optimizer.step()
    expected = KINDS[kind][1](net, x, y) if "noise" not in kind else None
    use(optimizer, net, x, y)  # and it goes on
    if expected is not None:
        for name, weight in net.named_parameters():
            torch.testing.assert_close(weight.grad, expected[name], rtol=1e-12, atol=1e-14)


def test_leaving_the_loop_early_puts_the_weights_back():
    net, (x, y) = network(), batch()
    optimizer = SAM(torch.optim.SGD(net.parameters(), lr=1.0), RHO)
    before = weights_of(net)
    for number, _ in enumerate(optimizer.passes()):
        loss_of(net, x, y).backward()
        if number == 1:
            break
    for name, weight in net.named_parameters():
        assert torch.equal(weight, before[name])


BAD = [
    (lambda o: SAM(o, -0.1), r"'rho' argument of SAM.* ≥ 0\. Got -0\.1\. Typical: 0\.05 \(SAM\)"),
    (lambda o: SAM(o, float("nan")), r"Got nan"),
    (lambda o: SAM(o, float("inf")), r"Got inf"),
    (lambda o: SAM(o, True), r"Got True"),
    (lambda o: SAM(o, "0.1"), r"Got '0\.1'"),
    (lambda o: SAM(o, every=0), r"'every' argument of SAM must be a whole number ≥ 1\. Got 0"),
    (lambda o: SAM(o, every=2.5), r"Got 2\.5"),
    (lambda o: ASAM(o, eta=-1, adaptive_bias=True), r"'eta' argument of ASAM must .* Got -1"),
    (lambda o: NoiseSAM(o, draws=0), r"'draws' argument of NoiseSAM must .* Got 0"),
    (lambda o: build_perturbed("Sam", o, 0.1), r"one of plain, sam, asam, noise_sam\. Got 'Sam'"),
    (lambda o: SAM(SAM(o)), r"must make one step from one gradient\. Got SAM"),
    (lambda o: SAM(type(o)), r"must be a torch optimizer\. Got <class .*SGD'>\. Write SAM\(torch"),
]


@pytest.mark.parametrize(("make", "text"), BAD)
def test_bad_arguments(make, text):
    with pytest.raises(SpiritlevelError, match=text):
        make(torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1))


def test_asam_has_no_default_for_biases():
    with pytest.raises(TypeError, match="adaptive_bias"):
        ASAM(torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1))


def test_optimizers_it_cannot_wrap():
    weights = [nn.Parameter(torch.zeros(2))]
    with pytest.raises(SpiritlevelError, match=r"Got LBFGS, which evaluates the loss at several"):
        SAM(torch.optim.LBFGS(weights))
    with pytest.raises(SpiritlevelError, match=r"own 'rho': SAM keeps .* Got Adadelta"):
        SAM(torch.optim.Adadelta(weights))


def test_bad_radius_of_a_group():
    groups = [{"params": [nn.Parameter(torch.zeros(2))], "rho": -1.0}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    with pytest.raises(SpiritlevelError, match=r"each parameter group.* Got -1\.0"):
        SAM(optimizer)
    optimizer.param_groups[0]["rho"] = 0.1
    optimizer = SAM(optimizer)
    with pytest.raises(SpiritlevelError, match=r"Got -2"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))], "rho": -2})
    assert len(optimizer.param_groups) == 1
    optimizer.param_groups[0]["rho"] = float("nan")  # as a scheduler of one's own might
    optimizer.param_groups[0]["params"][0].grad = torch.ones(2)
    with pytest.raises(SpiritlevelError, match=r"Got nan"), optimizer.perturbed():
        pass


def test_misuse_is_refused_and_leaves_the_weights_alone():
    net, (x, y) = network(), batch()
    optimizer = SAM(torch.optim.SGD(net.parameters(), lr=1.0), RHO)
    before = weights_of(net)

    def refused(text):
        return pytest.raises(SpiritlevelError, match=text)

    with refused(r"SAM\.perturbed\(\) needs the gradient at the weights"), optimizer.perturbed():
        pass
    loss_of(net, x, y).backward()
    with refused(r"Call step\(closure\), or write `for _ in optimizer\.passes\(\):`"):
        optimizer.step()
    for call in ("step", "passes", "perturbed"):
        loss_of(net, x, y).backward()
        with refused(rf"SAM\.{call}\(\) was called while the weights"), optimizer.perturbed():
            if call == "passes":
                next(optimizer.passes())
            elif call == "perturbed":
                with optimizer.perturbed():
                    pass
            else:
                optimizer.step()
    loss_of(net, x, y).backward()
    with refused(r"left no gradient.* The weights are back"), optimizer.perturbed():
        pass
    loss_of(net, x, y).backward()
    with refused(r"left no gradient"):
        optimizer.step(lambda: None)
    for name, weight in net.named_parameters():
        assert torch.equal(weight, before[name])


def test_sparse_gradients_are_refused():
    layer = nn.Embedding(4, 2, sparse=True)
    optimizer = SAM(torch.optim.SGD(layer.parameters(), lr=0.1))
    layer(torch.tensor([1])).sum().backward()
    with pytest.raises(SpiritlevelError, match=r"needs dense gradients"), optimizer.perturbed():
        pass


def test_a_step_without_any_gradient_is_no_step():
    """As with plain optimizers: Lightning skips a batch by a closure that does nothing."""
    net = network()
    optimizer, before = SAM(torch.optim.SGD(net.parameters(), lr=1.0), RHO), weights_of(net)
    assert optimizer.step(lambda: None) is None
    for name, weight in net.named_parameters():
        assert torch.equal(weight, before[name])
