"""Gradients of several batches: summed inside the loop they are right, before step(closure) not."""

import pytest
import torch

from spiritlevel import SpiritlevelError
from spiritlevel.training.sam.optimizers import SAM
from training.sam.sam_problem import RHO, batch, loss_of, network, weights_of


def halves():
    x, y = batch()
    return [(x[:6], y[:6]), (x[6:], y[6:])]


def sam(net):
    return SAM(torch.optim.SGD(net.parameters(), lr=0.1), rho=RHO)


def after_a_whole_batch():
    net = network()
    optimizer = sam(net)

    def closure():
        optimizer.zero_grad()
        loss = loss_of(net, *batch())
        loss.backward()
        return loss

    optimizer.step(closure)
    return weights_of(net)


def test_batches_summed_inside_the_loop_are_one_batch():
    net = network()
    optimizer = sam(net)
    for _ in optimizer.passes():
        optimizer.zero_grad()
        for x, y in halves():
            (loss_of(net, x, y) / 2).backward()
    optimizer.step()
    expected = after_a_whole_batch()
    for name, weight in weights_of(net).items():
        torch.testing.assert_close(weight, expected[name], rtol=1e-12, atol=1e-14)


def test_a_closure_that_adds_to_older_gradients_is_refused():
    net = network()
    optimizer, before = sam(net), weights_of(net)
    first, last = halves()
    (loss_of(net, *first) / 2).backward()

    def closure():  # as Lightning makes it for the last of two batches
        loss = loss_of(net, *last) / 2
        loss.backward()
        return loss

    with pytest.raises(SpiritlevelError, match=r"added to those of other batches.*accumulate_grad"):
        optimizer.step(closure)
    for name, weight in weights_of(net).items():
        assert torch.equal(weight, before[name])  # no step, and nothing displaced


@pytest.mark.parametrize("clear", ["optimizer", "model", "in place", "each in place"])
def test_however_the_closure_clears(clear):
    """Gradients of the last step are there when the next closure begins, and that is fine."""
    net = network()
    optimizer = sam(net)

    def closure():
        if clear == "optimizer":
            optimizer.zero_grad()
        elif clear == "each in place":
            for weight in net.parameters():
                if weight.grad is not None:
                    weight.grad.zero_()
        else:
            net.zero_grad(set_to_none=clear == "model")
        loss = loss_of(net, *batch())
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    plain = network()
    optimizer = sam(plain)
    for _ in range(3):
        for _ in optimizer.passes():
            plain.zero_grad()
            loss_of(plain, *batch()).backward()
        optimizer.step()
    for name, weight in weights_of(net).items():
        assert torch.equal(weight, weights_of(plain)[name])
